"""Events of an informer, and their delivery to handlers: first the present objects, then the changes."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal, TypeVar

from typing_extensions import override

from kplane.provider.cache.entry import Entry, EntryReader, Key, Object
from kplane.provider.client.resources import Resource
from kplane.provider.client.typed import typed_of

__all__ = ["Event", "EventHandler", "EventKind", "Handlers", "Registration"]

T = TypeVar("T")

EventKind = Literal["ADDED", "MODIFIED", "DELETED"]


class Event:
    """One change of one object. `initial` means that the object was there before the handler.

    The object is decoded on first access, once for all handlers: copy it before you change it. DELETED has the last
    state of the object; MODIFIED has the former one in `old`.
    """

    __slots__ = ("_metadata", "_object", "_old", "_old_metadata", "entry", "initial", "kind", "old_entry", "reader")

    def __init__(
        self,
        kind: EventKind,
        entry: Entry,
        *,
        reader: EntryReader,
        old: Entry | None = None,
        initial: bool = False,
    ) -> None:
        self.kind: Final[EventKind] = kind
        self.initial: Final = initial
        self.entry: Final = entry
        """The object's cheap part: labels, generation and such, decoded already."""
        self.old_entry: Final = old
        """That of the object before the change."""
        self.reader: Final = reader
        """What decodes it."""
        self._object: Object | None = None
        self._metadata: Object | None = None
        self._old: Object | None = None
        self._old_metadata: Object | None = None

    @override
    def __repr__(self) -> str:
        return f"Event({self.kind} {self.resource} {'/'.join(filter(None, self.entry.key))})"

    @property
    def resource(self) -> Resource:
        """Kind of the object."""
        return self.reader.resource

    @property
    def name(self) -> str:
        """Name of the object."""
        return self.entry.name

    @property
    def namespace(self) -> str:
        """Namespace of the object; empty for cluster-scoped kinds."""
        return self.entry.namespace

    @property
    def uid(self) -> str:
        """UID of the object."""
        return self.entry.uid

    @property
    def resource_version(self) -> str:
        """resourceVersion of the object."""
        return self.entry.resource_version

    @property
    def generation(self) -> int:
        """Generation of the object; 0 for kinds that have none."""
        return self.entry.generation

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the object."""
        return self.entry.labels

    @property
    def deleting(self) -> bool:
        """Whether the object has a deletionTimestamp."""
        return self.entry.deleting

    @property
    def object(self) -> Object:
        """The whole object, without managedFields. Raises Unreachable if the server sent no object."""
        if self._object is None:
            self._object = self.reader.decode(self.entry)
        return self._object

    @property
    def metadata(self) -> Object:
        """All metadata of the object, such as annotations and owners: less work than `object` for large objects."""
        if self._metadata is None:
            self._metadata = self.reader.decode_metadata(self.entry)
        return self._metadata

    def decode_as(self, kind: type[T]) -> T:
        """Return the object as an instance of a class that `typed_kind` has declared; all handlers share it.

        Raises DecodeFailed.
        """
        return self._as(self.entry, kind)

    def decode_old_as(self, kind: type[T]) -> T | None:
        """Return the object before the change as `decode_as` does, for MODIFIED."""
        return None if self.old_entry is None else self._as(self.old_entry, kind)

    def _as(self, entry: Entry, kind: type[T]) -> T:
        typed = typed_of(kind)
        assert typed is not None  # noqa: S101 - it is a class
        return self.reader.decode_as(entry, typed, source="the cache")

    @property
    def old(self) -> Object | None:
        """The whole object before the change, for MODIFIED."""
        if self._old is None and self.old_entry is not None:
            self._old = self.reader.decode(self.old_entry)
        return self._old

    @property
    def old_metadata(self) -> Object | None:
        """All metadata before the change, for MODIFIED."""
        if self._old_metadata is None and self.old_entry is not None:
            self._old_metadata = self.reader.decode_metadata(self.old_entry)
        return self._old_metadata


log: Final = logging.getLogger(__name__)

EventHandler = Callable[[Event], None]
"""Is called in the loop and must not block; what it raises is logged."""

_SLICE: Final = 100


class Registration:
    """A handler of an informer, until `remove` or the end of the cluster.

    It outlives the pauses of the informer. While no objects are kept it is not called; then it gets those that are
    there, as at first. It is not called for objects that went meanwhile, so it must not count on a DELETED for each.
    """

    __slots__ = ("_handler", "_paused", "_pending", "_present", "_removed", "_source_synced", "synced")

    def __init__(
        self,
        handler: EventHandler,
        *,
        pending: Iterable[Key],
        present: Callable[[Key], Event | None],
        source_synced: asyncio.Event,
        removed: Callable[[Registration], None],
    ) -> None:
        self.synced: Final = asyncio.Event()
        """Set once the handler was given all objects that were there when it was added; cleared by a pause."""
        self._handler = handler
        self._present = present
        self._source_synced = source_synced
        self._removed: Callable[[Registration], None] | None = removed
        self._pending: dict[Key, None] = {}
        self._paused = False
        self.restart(pending)

    @property
    def removed(self) -> bool:
        """Whether it was removed."""
        return self._removed is None

    def remove(self) -> None:
        """Remove the handler: it is not called again."""
        removed, self._removed = self._removed, None
        if removed is not None:
            self._pending.clear()
            removed(self)

    def pause(self) -> None:
        """Do not call the handler until `restart`."""
        self._paused = True
        self._pending = {}
        self.synced.clear()

    def restart(self, pending: Iterable[Key] = ()) -> None:
        """Give the handler these objects, as if it were new."""
        self._paused = False
        # From the end, because a dict gives that away cheaply.
        self._pending = dict.fromkeys(reversed([*pending]))
        asyncio.get_running_loop().call_soon(self._hand_over)

    def see(self, event: Event) -> None:
        """Pass an event on, unless the handler has yet to get the object: it gets the object as it is then.

        DELETED is always passed on: the handler may know the object from an earlier registration.
        """
        if self._removed is None or self._paused:
            return
        if event.entry.key in self._pending:
            if event.kind != "DELETED":
                return
            del self._pending[event.entry.key]
        self._call(event)

    def settle(self) -> None:
        """Set `synced` if the handler has all objects."""
        if self._removed is not None and not self._paused and self._source_synced.is_set() and not self._pending:
            self.synced.set()

    def _hand_over(self) -> None:
        for _ in range(_SLICE):
            if not self._pending:
                break
            key, _ = self._pending.popitem()
            event = self._present(key)
            if event is not None:
                self._call(event)
        if self._pending:
            asyncio.get_running_loop().call_soon(self._hand_over)
        self.settle()

    def _call(self, event: Event) -> None:
        try:
            self._handler(event)
        except Exception:
            log.exception("failed to handle %r", event)


class Handlers:
    """Keeps the registrations of one informer: for all namespaces, and for one each."""

    def __init__(self) -> None:
        self._everywhere: tuple[Registration, ...] = ()
        self._within: dict[str, tuple[Registration, ...]] = {}

    def __iter__(self) -> Iterator[Registration]:
        """Return all registrations."""
        return iter([*self._everywhere, *itertools.chain.from_iterable(self._within.values())])

    def __bool__(self) -> bool:
        return bool(self._everywhere or self._within)

    def of(self, namespace: str) -> tuple[Registration, ...]:
        """Return the registrations for objects in this namespace."""
        within = self._within.get(namespace)
        return self._everywhere if within is None else self._everywhere + within

    def add(self, registration: Registration, *, namespace: str | None) -> None:
        """Add a registration for a namespace or, with None, for all."""
        if namespace is None:
            self._everywhere += (registration,)
        else:
            self._within[namespace] = (*self._within.get(namespace, ()), registration)

    def remove(self, registration: Registration, *, namespace: str | None) -> None:
        """Remove a registration."""
        if namespace is None:
            self._everywhere = tuple(each for each in self._everywhere if each is not registration)
            return
        left = tuple(each for each in self._within.get(namespace, ()) if each is not registration)
        if left:
            self._within[namespace] = left
        else:
            self._within.pop(namespace, None)
