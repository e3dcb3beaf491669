"""Cache of objects of the management cluster, keyed by (namespace or "", name)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from typing_extensions import override

from kplane.provider import Event, Informer, Resource
from kplane.provider.cache.event import Registration
from kplane.provider.client.written import read_write

__all__ = ["Change", "Key", "MergedStore", "Object", "Store", "UIDTracker", "key_of"]

_log: Final = logging.getLogger(__name__)

Key: TypeAlias = tuple[str, str]
Object: TypeAlias = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an object: `old` is None for a new object, and `new` is None for a deleted object."""

    key: Key
    old: Object | None
    new: Object | None


def key_of(obj: Mapping[str, Any]) -> Key:
    """Return the key of an object."""
    metadata = obj["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


class Store:
    """All objects of a kind, decoded and indexed, as an informer mirrors them.

    The informer gets the answers to the operator's own writes too, so a reconcile reads what an earlier one wrote.

    If an indexer or a listener raises, the error is logged with the name of the object, and the others still run.
    """

    def __init__(
        self, resource: Resource, *, indexers: Mapping[str, Callable[[Object], Iterable[str]]] | None = None
    ) -> None:
        """Each indexer returns the values under which `by` finds an object."""
        self.resource = resource
        self._objects: dict[Key, Object] = {}
        self._namespaces: dict[str, dict[Key, Object]] = {}
        self._informer: Informer | None = None
        self._indexers = dict(indexers or {})
        self._indexes: dict[str, dict[str, set[Key]]] = {name: {} for name in self._indexers}
        self._listeners: list[Callable[[Change], None]] = []
        self._read: dict[Key, Any] = {}

    def __iter__(self) -> Iterator[Object]:
        return iter(list(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Key) -> Object | None:
        """Return the object; None if there is none."""
        return self._objects.get(key)

    def read(self, key: Key, reader: Callable[[Object], T]) -> T | None:
        """Return the result of `reader` for an object, computed once per version; None if there is no object.

        This is for kinds with few objects and many readers, since the results take memory. A store supports a single
        reader function.
        """
        obj = self._objects.get(key)
        if obj is None:
            return None
        if key not in self._read:
            self._read[key] = reader(obj)
        result: T = self._read[key]
        return result

    def by(self, index: str, value: str) -> list[Object]:
        """Return the objects that an indexer files under a value, in the order of their keys."""
        return [self._objects[key] for key in sorted(self._indexes[index].get(value, ()))]

    def listen(self, listener: Callable[[Change], None]) -> None:
        """Call the listener with every change from now on, immediately and in order."""
        self._listeners.append(listener)

    def ignore(self, listener: Callable[[Change], None]) -> None:
        """Stop calling the listener."""
        self._listeners.remove(listener)

    def replay(self, listener: Callable[[Change], None]) -> None:
        """Call the listener once with every present object, as if all of them were new."""
        for key, obj in list(self._objects.items()):
            self._call(listener, Change(key, None, obj))

    def follow(self, informer: Informer) -> Registration:
        """Fill the store from an informer. The registration tells when the store has all present objects."""
        self._informer = informer
        return informer.add_handler(self.see)

    def see(self, event: Event) -> None:
        """Take over a change of the informer."""
        if event.kind == "DELETED":
            self._set(event.entry.key, None)
        else:
            self._set(event.entry.key, event.object)

    def apply(self, obj: Object) -> None:
        """Store an object that was read from the API server, unless the informer has the same or a newer version."""
        if self._informer is None:
            self._set(key_of(obj), _cached(obj))
        elif (written := read_write(self.resource, obj)) is not None:
            self._informer.observe(written)

    def remove(self, obj: Object) -> None:
        """Remove an object that is gone."""
        self._set(key_of(obj), None)

    def of_namespace(self, namespace: str) -> list[Object]:
        """Return the objects of a namespace."""
        return list(self._namespaces.get(namespace, {}).values())

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
        except Exception:  # noqa: BLE001 - the other listeners must still be called
            _log.exception("failed to handle a change of %s", self._named(change.key))

    def _reindex(self, key: Key, old: Object | None, new: Object | None) -> None:
        for name, index in self._indexes.items():
            # A failure to index the old version was logged at that time.
            before, after = self._values(name, old, logged=False), self._values(name, new)
            for value in before - after:
                index[value].discard(key)
                if not index[value]:
                    del index[value]
            for value in after - before:
                index.setdefault(value, set()).add(key)

    def _values(self, name: str, obj: Object | None, *, logged: bool = True) -> set[str]:
        """Return the values under which an index has an object; empty if the indexer raises."""
        if obj is None:
            return set()
        try:
            return set(self._indexers[name](obj))
        except Exception:  # noqa: BLE001 - a stored object may have any shape
            if logged:
                _log.exception("failed to index %s by %r", self._named(key_of(obj)), name)
            return set()

    def _named(self, key: Key) -> str:
        return f"{self.resource.kind} {'/'.join(filter(None, key))}"


class MergedStore(Store):
    """The Secrets of many namespaces, from watches, periodic lists, and answers to the operator's own writes.

    These sources may overtake each other. The resourceVersion decides: an older object never replaces a newer object.
    An object that was seen to be deleted does not return by an older list.
    """

    def __init__(self, resource: Resource) -> None:
        super().__init__(resource)
        self._gone: dict[Key, int] = {}

    @override
    def see(self, event: Event) -> None:
        """Apply the event of an informer.

        Most events are the operator's own writes, whose answers are stored already. Such events are not parsed.
        """
        if event.kind == "DELETED":
            self.remove(event.object)
        elif self.lacks(event.entry.key, resource_version=event.resource_version):
            self.apply(event.object)

    @override
    def apply(self, obj: Object) -> None:
        """Store an object unless the store has the same or a newer version."""
        key = key_of(obj)
        if not self.lacks(key, resource_version=obj["metadata"]["resourceVersion"]):
            return
        self._gone.pop(key, None)
        self._set(key, _cached(obj))

    def lacks(self, key: Key, *, resource_version: str) -> bool:
        """Return whether `apply` would change the store for an object of this key and resourceVersion."""
        stored, version = self._objects.get(key), int(resource_version)
        return version > self._gone.get(key, -1) and (stored is None or version > _version(stored))

    @override
    def remove(self, obj: Object) -> None:
        """Remove a deleted object; `obj` is its last state."""
        key, version = key_of(obj), _version(obj)
        stored = self._objects.get(key)
        if stored is not None and _version(stored) > version:
            return
        self._gone[key] = max(version, self._gone.get(key, -1))
        self._set(key, None)

    def replace(self, objects: Iterable[Object], *, resource_version: str, namespace: str) -> None:
        """Apply a complete list of a namespace. Objects that it lacks are removed unless they are newer."""
        listed = int(resource_version)
        seen = set()
        for obj in objects:
            seen.add(key_of(obj))
            self.apply(obj)
        for obj in self.of_namespace(namespace):
            if key_of(obj) not in seen and _version(obj) <= listed:
                self._set(key_of(obj), None)
        self._gone = {key: version for key, version in self._gone.items() if key[0] != namespace or version > listed}

    def repeat(self, namespace: str) -> None:
        """Call all listeners with the unchanged objects of a namespace."""
        for obj in self.of_namespace(namespace):
            for listener in self._listeners:
                self._call(listener, Change(key_of(obj), obj, obj))

    def forget(self, namespace: str) -> None:
        """Remove all objects of a namespace that is no longer watched. A later list may bring them back."""
        for obj in self.of_namespace(namespace):
            self._set(key_of(obj), None)


def _version(obj: Mapping[str, Any]) -> int:
    # Kubernetes promises increasing decimal numbers since 1.35, and etcd has always provided them.
    return int(obj["metadata"]["resourceVersion"])


def _cached(obj: Object) -> Object:
    """Return the object without managedFields. Callers may change their own copy of the metadata."""
    return {**obj, "metadata": {name: value for name, value in obj["metadata"].items() if name != "managedFields"}}


class UIDTracker:
    """Remembers the latest uid of each name."""

    def __init__(self) -> None:
        self._uids: Final[dict[Key, str]] = {}

    def former(self, key: Key, *, uid: str | None) -> str | None:
        """Return the uid that had the name before, if it differs from the present `uid`; traces of it may be left."""
        former_uid = self._uids.get(key)
        return former_uid if former_uid != uid else None

    def succeed(self, key: Key, *, uid: str | None) -> None:
        """Record the present uid of the name; None if there is no such object."""
        if uid is None:
            self._uids.pop(key, None)
        else:
            self._uids[key] = uid

    def of(self, concerned: Callable[[str], bool]) -> list[Key]:
        """Return the names whose recorded uid satisfies the predicate."""
        return [key for key, uid in self._uids.items() if concerned(uid)]
