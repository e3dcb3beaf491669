"""Events of an informer, and their delivery to handlers: first the existing objects, then the changes."""

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
    """A change of an object. `initial` means that the object existed before the handler was added.

    The object is decoded on first access, once for all handlers: copy it before you change it. DELETED carries the
    last state of the object; MODIFIED also carries the previous state, in `old`.
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
        """Entry of the object, whose labels, generation and other common metadata are decoded already."""
        self.old_entry: Final = old
        """Entry of the object before the change."""
        self.reader: Final = reader
        """Decodes the object."""
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
        """All metadata of the object, such as annotations and owners; cheaper than `object` for large objects."""
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
"""A callback that the event loop runs: it must not block. Its exceptions are logged."""

_SLICE: Final = 100


class Registration:
    """A handler of an informer, until `remove` or the end of the cluster.

    A registration outlives pauses of the informer. After a pause, the handler gets all existing objects as initial
    events again. The handler gets no DELETED for an object that was deleted during the pause.
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
        """Set once the handler has got all objects that existed when it was added; cleared by a pause."""
        self._handler = handler
        self._present = present
        self._source_synced = source_synced
        self._removed: Callable[[Registration], None] | None = removed
        self._pending: dict[Key, None] = {}
        self._paused = False
        self.restart(pending)

    @property
    def removed(self) -> bool:
        """Whether the handler was removed."""
        return self._removed is None

    def remove(self) -> None:
        """Remove the handler, which is not called again."""
        removed, self._removed = self._removed, None
        if removed is not None:
            self._pending.clear()
            removed(self)

    def pause(self) -> None:
        """Stop calling the handler until `restart`."""
        self._paused = True
        self._pending = {}
        self.synced.clear()

    def restart(self, pending: Iterable[Key] = ()) -> None:
        """Pass these objects to the handler, as if it were new."""
        self._paused = False
        # Reversed, because `popitem` of a dict takes the last item.
        self._pending = dict.fromkeys(reversed([*pending]))
        asyncio.get_running_loop().call_soon(self._deliver_initial)

    def see(self, event: Event) -> None:
        """Pass an event to the handler, unless its initial event is pending, which will carry the latest state.

        DELETED is always passed: the handler may know the object from an earlier registration.
        """
        if self._removed is None or self._paused:
            return
        if event.entry.key in self._pending:
            if event.kind != "DELETED":
                return
            del self._pending[event.entry.key]
        self._call(event)

    def settle(self) -> None:
        """Set `synced` if the handler has got all objects."""
        if self._removed is not None and not self._paused and self._source_synced.is_set() and not self._pending:
            self.synced.set()

    def _deliver_initial(self) -> None:
        for _ in range(_SLICE):
            if not self._pending:
                break
            key, _ = self._pending.popitem()
            event = self._present(key)
            if event is not None:
                self._call(event)
        if self._pending:
            asyncio.get_running_loop().call_soon(self._deliver_initial)
        self.settle()

    def _call(self, event: Event) -> None:
        try:
            self._handler(event)
        except Exception:
            log.exception("failed to handle %r", event)


class Handlers:
    """Keeps the registrations of an informer, for all namespaces or for a single namespace."""

    def __init__(self) -> None:
        self._all_namespaces: tuple[Registration, ...] = ()
        self._by_namespace: dict[str, tuple[Registration, ...]] = {}

    def __iter__(self) -> Iterator[Registration]:
        """Return all registrations."""
        return iter([*self._all_namespaces, *itertools.chain.from_iterable(self._by_namespace.values())])

    def __bool__(self) -> bool:
        return bool(self._all_namespaces or self._by_namespace)

    def of(self, namespace: str) -> tuple[Registration, ...]:
        """Return the registrations for objects in this namespace."""
        within = self._by_namespace.get(namespace)
        return self._all_namespaces if within is None else self._all_namespaces + within

    def add(self, registration: Registration, *, namespace: str | None) -> None:
        """Add a registration for a namespace or, with None, for all."""
        if namespace is None:
            self._all_namespaces += (registration,)
        else:
            self._by_namespace[namespace] = (*self._by_namespace.get(namespace, ()), registration)

    def remove(self, registration: Registration, *, namespace: str | None) -> None:
        """Remove a registration."""
        if namespace is None:
            self._all_namespaces = tuple(other for other in self._all_namespaces if other is not registration)
            return
        remaining = tuple(other for other in self._by_namespace.get(namespace, ()) if other is not registration)
        if remaining:
            self._by_namespace[namespace] = remaining
        else:
            self._by_namespace.pop(namespace, None)
