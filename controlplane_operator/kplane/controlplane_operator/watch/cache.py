"""Objects of the management cluster as last seen, told apart by (namespace or "", name)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from kplane.provider import Event, Resource

__all__ = ["Change", "Key", "Object", "Store", "UIDTracker", "key_of"]

_log: Final = logging.getLogger(__name__)

Key: TypeAlias = tuple[str, str]
Object: TypeAlias = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one object: `old` is None for a new one, `new` for one that is gone."""

    key: Key
    old: Object | None
    new: Object | None


def key_of(obj: Mapping[str, Any]) -> Key:
    """Return the key of an object."""
    metadata = obj["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


class Store:
    """All objects of one kind, fed by watch events, by lists, and by what our own writes return.

    These three may overtake each other. The resourceVersion decides: nothing older ever replaces something newer, and
    an object that was seen to go does not come back by an older list.

    An indexer or a listener that raises is logged with the name of the object. It holds up no other one.
    """

    def __init__(
        self, resource: Resource, *, indexers: Mapping[str, Callable[[Object], Iterable[str]]] | None = None
    ) -> None:
        """Each indexer gives the values under which `by` finds an object."""
        self.resource = resource
        self._objects: dict[Key, Object] = {}
        self._namespaces: dict[str, dict[Key, Object]] = {}
        self._gone: dict[Key, int] = {}
        self._indexers = dict(indexers or {})
        self._indexes: dict[str, dict[str, set[Key]]] = {name: {} for name in self._indexers}
        self._listeners: list[Callable[[Change], None]] = []
        self._read: dict[Key, Any] = {}

    def __iter__(self) -> Iterator[Object]:
        return iter(list(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Key) -> Object | None:
        """Return the object, or None."""
        return self._objects.get(key)

    def read(self, key: Key, reader: Callable[[Object], T]) -> T | None:
        """Return what `reader` makes of an object, made once for each state of it; None if there is no object.

        For a kind of few objects with many readers, since the results take memory. A store has one reader.
        """
        obj = self._objects.get(key)
        if obj is None:
            return None
        if key not in self._read:
            self._read[key] = reader(obj)
        found: T = self._read[key]
        return found

    def by(self, index: str, value: str) -> list[Object]:
        """Return the objects that an indexer files under a value, in the order of their keys."""
        return [self._objects[key] for key in sorted(self._indexes[index].get(value, ()))]

    def listen(self, listener: Callable[[Change], None]) -> None:
        """Call back, at once and in order, with every change from now on."""
        self._listeners.append(listener)

    def replay(self, listener: Callable[[Change], None]) -> None:
        """Call back once with every known object, as if all of them had just come."""
        for key, obj in list(self._objects.items()):
            self._call(listener, Change(key, None, obj))

    def apply(self, obj: Object) -> None:
        """Take in an object as it was seen; an older or equal one than the known one changes nothing."""
        key = key_of(obj)
        if not self.lacks(key, resource_version=obj["metadata"]["resourceVersion"]):
            return
        self._gone.pop(key, None)
        obj["metadata"].pop("managedFields", None)
        self._set(key, obj)

    def lacks(self, key: Key, *, resource_version: str) -> bool:
        """Tell whether `apply` would change something for an object of this key and resourceVersion."""
        known, version = self._objects.get(key), int(resource_version)
        return version > self._gone.get(key, -1) and (known is None or version > _version(known))

    def remove(self, obj: Object) -> None:
        """Take in that an object was seen to go; `obj` is its last state."""
        key, version = key_of(obj), _version(obj)
        known = self._objects.get(key)
        if known is not None and _version(known) > version:
            return
        self._gone[key] = max(version, self._gone.get(key, -1))
        self._set(key, None)

    def see(self, event: Event) -> None:
        """Take in what an Informer says.

        Most of that are our own writes, whose answers are known: those are not even parsed.
        """
        if event.kind == "DELETED":
            self.remove(event.object)
        elif self.lacks(event.entry.key, resource_version=event.resource_version):
            self.apply(event.object)

    def replace(self, objects: Iterable[Object], *, resource_version: str, namespace: str | None = None) -> None:
        """Take in a complete list: what it lacks is gone, unless it came after the list was made."""
        listed = int(resource_version)
        seen = set()
        for obj in objects:
            seen.add(key_of(obj))
            self.apply(obj)
        for key, obj in list((self._objects if namespace is None else self._namespaces.get(namespace, {})).items()):
            if key not in seen and _version(obj) <= listed:
                self._set(key, None)
        if namespace is not None:
            return
        self._gone = {key: version for key, version in self._gone.items() if version > listed}

    def of_namespace(self, namespace: str) -> list[Object]:
        """Return the objects of one namespace."""
        return list(self._namespaces.get(namespace, {}).values())

    def repeat(self, namespace: str) -> None:
        """Call all listeners once more with the objects of a namespace, which have not changed."""
        for obj in self.of_namespace(namespace):
            for listener in self._listeners:
                self._call(listener, Change(key_of(obj), obj, obj))

    def forget(self, namespace: str) -> None:
        """Drop all objects of a namespace that is followed no longer; a later list may bring them back."""
        for obj in self.of_namespace(namespace):
            self._set(key_of(obj), None)

    def _set(self, key: Key, new: Object | None) -> None:
        old = self._objects.pop(key, None)
        self._read.pop(key, None)
        if old is None and new is None:
            return
        neighbours = self._namespaces.setdefault(key[0], {})
        neighbours.pop(key, None)
        if new is not None:
            self._objects[key] = neighbours[key] = new
        elif not neighbours:
            del self._namespaces[key[0]]
        self._reindex(key, old, new)
        for listener in self._listeners:
            self._call(listener, Change(key, old, new))

    def _call(self, listener: Callable[[Change], None], change: Change) -> None:
        try:
            listener(change)
        except Exception:  # noqa: BLE001 - the others must hear of it
            _log.exception("failed to handle a change of %s", self._named(change.key))

    def _reindex(self, key: Key, old: Object | None, new: Object | None) -> None:
        for name, index in self._indexes.items():
            # What was not indexed was logged then.
            before, after = self._values(name, old, logged=False), self._values(name, new)
            for value in before - after:
                index[value].discard(key)
                if not index[value]:
                    del index[value]
            for value in after - before:
                index.setdefault(value, set()).add(key)

    def _values(self, name: str, obj: Object | None, *, logged: bool = True) -> set[str]:
        """Return the values under which an index has an object: none if the indexer raises."""
        if obj is None:
            return set()
        try:
            return set(self._indexers[name](obj))
        except Exception:  # noqa: BLE001 - an object of any shape may have been stored
            if logged:
                _log.exception("failed to index %s by %r", self._named(key_of(obj)), name)
            return set()

    def _named(self, key: Key) -> str:
        return f"{self.resource.kind} {'/'.join(filter(None, key))}"


def _version(obj: Mapping[str, Any]) -> int:
    # A decimal number that grows, and comparable: promised by Kubernetes since 1.35, true of etcd always.
    return int(obj["metadata"]["resourceVersion"])


class UIDTracker:
    """Remembers by its uid who had each name when that was looked at last."""

    def __init__(self) -> None:
        self._uids: Final[dict[Key, str]] = {}

    def former(self, key: Key, *, uid: str | None) -> str | None:
        """Return the uid of who had the name and is gone, where something of it may be left; `uid` has it now."""
        known = self._uids.get(key)
        return known if known != uid else None

    def succeed(self, key: Key, *, uid: str | None) -> None:
        """Remember the uid under the name now; None if there is no such object."""
        if uid is None:
            self._uids.pop(key, None)
        else:
            self._uids[key] = uid

    def of(self, concerned: Callable[[str], bool]) -> list[Key]:
        """Return the names under which those are remembered whose uid is as asked for."""
        return [key for key, uid in self._uids.items() if concerned(uid)]
