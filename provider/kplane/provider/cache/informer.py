"""Mirrors the objects of a kind, and passes every change to handlers."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

from typing_extensions import override

from kplane.provider.aio.backoff import Backoff
from kplane.provider.aio.cancellation import end_tasks
from kplane.provider.cache.entry import Change, Entry, EntryReader, Key, Object
from kplane.provider.cache.event import Event, EventHandler, EventKind, Handlers, Registration
from kplane.provider.cache.feed import Feed, FeedState, Scope, Streaming
from kplane.provider.cache.store import Extract, Store
from kplane.provider.client.client import Client
from kplane.provider.client.resources import Resource
from kplane.provider.errors import AnswerTooLarge, ClusterNotReady
from kplane.provider.logs import log_fields

__all__ = ["Informer", "Transform"]

log: Final = logging.getLogger(__name__)

Transform = Callable[[Object], Object]
"""Changes an object before it is kept: to leave out unused parts. Its identity must stay."""

Objects = list[Object]
Entries = list[Entry]
Keys = list[Key]

_SLICE: Final = 100


class Informer:
    """Mirrors the objects of a kind: from `start` until `aclose`, as a `Cache` does, or while `run` runs.

    `namespace`, `label_selector` and `name` narrow it down. For `name`, `get` and `watch` on that name are enough.

    Objects stay bytes, without managedFields, until they are read. Each read makes a new object, which the reader may
    change. With `metadata_only`, objects have only apiVersion, kind and metadata, and the server sends no more.

    The objects take at most `limits.list_bytes` of the client, if that is set. A server with more of them counts as
    unreachable, and the objects that are known stay. `cluster` is a name for logs and task names.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        namespace: str | None = None,
        name: str | None = None,
        label_selector: str | None = None,
        metadata_only: bool = False,
        transform: Transform | None = None,
        streaming: Streaming | None = None,
        cluster: str = "",
        relist_seconds: float = 3600.0,
        watch_seconds: float = 300.0,
        idle_timeout_seconds: float = 120.0,
        backoff: Backoff | None = None,
    ) -> None:
        self.resource = resource
        self.metadata_only = metadata_only
        self._cluster = cluster
        self._server = client.config.server
        self._reader = EntryReader(resource, server=self._server, metadata_only=metadata_only)
        self._store = Store(self._reader)
        self._mirror = _Mirror(self._store, transform=transform, bytes_at_most=client.limits.list_bytes)
        self.synced = self._mirror.synced
        """Set once all objects were read for the first time."""
        self._feed = Feed(
            client,
            self._reader,
            self._mirror,
            streaming=streaming or Streaming(),
            scope=Scope(namespace, name, label_selector),
            relist_seconds=relist_seconds,
            watch_seconds=watch_seconds,
            idle_timeout_seconds=idle_timeout_seconds,
            backoff=backoff,
        )
        self._task: asyncio.Task[NoReturn] | None = None
        self._closed = False

    @override
    def __repr__(self) -> str:
        return f"Informer({self._feed}{', metadata_only=True' if self.metadata_only else ''})"

    @property
    def state(self) -> FeedState:
        """Whether the objects are up to date: ready, connecting (the first time), or unreachable."""
        return self._feed.state

    @property
    def error(self) -> str:
        """Why the server is unreachable."""
        return self._feed.error

    @property
    def restarts(self) -> Mapping[str, int]:
        """Number of watches that ended, by reason."""
        return self._feed.restarts

    @property
    def feed(self) -> Feed:
        """What follows the objects."""
        return self._feed

    @property
    def size_bytes(self) -> int:
        """Bytes of all objects."""
        return self._store.size_bytes

    def start(self) -> None:
        """Start to mirror, in a task of its own."""
        if self._task is None and not self._closed:
            # In a context of its own, not in that of the reconcile that needed it first.
            name = f"{self._cluster}: informer of {self._feed}".removeprefix(": ")
            self._task = asyncio.create_task(self.run(), name=name, context=contextvars.Context())

    async def run(self, handler: EventHandler | None = None) -> NoReturn:
        """Mirror until cancelled; may be called again later. `handler` is added for that time."""
        registration = self.add_handler(handler) if handler is not None else None
        try:
            with log_fields(**({"cluster": self._cluster} if self._cluster else {})):
                await self._feed.run()
        finally:
            if registration is not None:
                registration.remove()

    async def aclose(self) -> None:
        """Stop, and forget handlers and objects; no handler is called again."""
        self._closed = True
        self._mirror.settled.set()
        for registration in self._mirror.handlers:
            registration.remove()
        task, self._task = self._task, None
        if task is not None:
            await end_tasks([task])
        self._store.clear()

    async def wait_synced(self) -> None:
        """Wait until all objects were read once. Raises ClusterNotReady if it is closed before."""
        await self._mirror.settled.wait()
        self._require_open()

    def add_handler(self, handler: EventHandler, *, namespace: str | None = None) -> Registration:
        """Pass all present objects to a handler, as ADDED with `initial`, and every later change.

        The handler misses no change and sees none twice: an object that changes before it was handed over comes in its
        new state, and one that is deleted before comes as DELETED alone. The handler is not called before this method
        returns. With `namespace` it sees only objects of that namespace; many such handlers cost no more than one.
        Raises ClusterNotReady if the informer is closed.
        """
        self._require_open()
        registration = Registration(
            handler,
            pending=self.keys(namespace=namespace),
            present=self._present,
            source_synced=self.synced,
            removed=lambda ended: self._mirror.handlers.remove(ended, namespace=namespace),
        )
        self._mirror.handlers.add(registration, namespace=namespace)
        return registration

    def add_index(self, field: str, extract: Extract) -> None:
        """Index a field; the same function may be added twice. Present objects are decoded at once."""
        self._store.add_index(field, extract)

    def get(self, name: str, *, namespace: str | None = None) -> Object | None:
        """Return an object as it is known now. Raises ClusterNotReady if the informer is closed."""
        entry = self.entry(name, namespace=namespace)
        return None if entry is None else self._reader.decode(entry)

    def entry(self, name: str, *, namespace: str | None = None) -> Entry | None:
        """Return what is decoded of an object anyway, such as its labels. Raises as `get`."""
        self._require_open()
        return self._store.get((namespace or "", name))

    def list(
        self,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field: Mapping[str, str] | None = None,
    ) -> Objects:
        """Return the objects that are known now; `namespace=None` means all namespaces.

        `field` are values of indexed fields, all of which must match. Raises ProviderError for a field without index
        and an invalid selector, and ClusterNotReady if the informer is closed.
        """
        found = self.entries(namespace=namespace, label_selector=label_selector, field=field)
        return [self._reader.decode(entry) for entry in found]

    def entries(
        self,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field: Mapping[str, str] | None = None,
    ) -> Entries:
        """Return what is decoded of these objects anyway, such as their labels. Raises as `list`."""
        self._require_open()
        return self._store.select(namespace=namespace, label_selector=label_selector, field=field)

    def keys(
        self,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field: Mapping[str, str] | None = None,
    ) -> Keys:
        """Return namespaces and names of what `list` would return, without decoding the objects."""
        return [each.key for each in self.entries(namespace=namespace, label_selector=label_selector, field=field)]

    def _require_open(self) -> None:
        # What is forgotten must not be taken for gone.
        if self._closed:
            raise ClusterNotReady(f"the cache of {self._server} was stopped")

    def _present(self, key: Key) -> Event | None:
        """Return the event that hands a present object to a new handler."""
        entry = self._store.get(key)
        return None if entry is None else Event("ADDED", entry, reader=self._reader, initial=True)


class _Mirror:
    """Applies what the feed finds to the store of an informer, and calls its handlers."""

    def __init__(self, store: Store, *, transform: Transform | None, bytes_at_most: int | None) -> None:
        self.handlers: Final = Handlers()
        self.synced: Final = asyncio.Event()
        self.settled: Final = asyncio.Event()
        """Set once it is synced, or never will be."""
        self._store = store
        self._transform = transform
        self._bytes_at_most = bytes_at_most

    async def replace(self, entries: list[Entry]) -> None:
        """Make these all objects that there are."""
        present = {entry.key for entry in entries}
        gone = [entry for entry in self._store if entry.key not in present]
        for number, entry in enumerate(gone + entries, start=1):
            if number > len(gone):
                self._upsert(entry)
            else:
                self._delete(entry)
            if not number % _SLICE:
                await asyncio.sleep(0)
        self.synced.set()
        self.settled.set()
        for registration in self.handlers:
            registration.settle()

    def apply(self, changes: list[Change]) -> None:
        """Apply the next changes."""
        for change in changes:
            if change.type == "DELETED":
                self._delete(change.entry)
            else:
                self._upsert(change.entry)

    def _upsert(self, entry: Entry) -> None:
        known = self._store.get(entry.key)
        if known is not None and known.uid != entry.uid:
            self._delete(known)
            known = None
        if known is not None and known.resource_version == entry.resource_version:
            return
        entry = self._transformed(entry)
        size_bytes = self._store.size_bytes + len(entry.raw) - (0 if known is None else len(known.raw))
        if self._bytes_at_most is not None and size_bytes > self._bytes_at_most:
            raise AnswerTooLarge(
                f"all {self._store.reader.resource.plural} of the server are more than {self._bytes_at_most} bytes"
            )
        self._store.put(entry)
        self._notify("ADDED" if known is None else "MODIFIED", entry, known)

    def _delete(self, entry: Entry) -> None:
        if self._store.pop(entry.key) is not None:
            self._notify("DELETED", self._transformed(entry), None)

    def _transformed(self, entry: Entry) -> Entry:
        if self._transform is None:
            return entry
        reader = self._store.reader
        try:
            changed = reader.encode(self._transform(reader.decode(entry)))
            if (changed.key, changed.uid, changed.resource_version) != (entry.key, entry.uid, entry.resource_version):
                raise ValueError("it has another identity")  # noqa: TRY301 - is logged as whatever a transform raises
        except Exception:
            log.exception("failed to transform %s %s; keeping it as it is", reader.resource, "/".join(entry.key))
            return entry
        return changed

    def _notify(self, kind: EventKind, entry: Entry, old: Entry | None) -> None:
        if registrations := self.handlers.of(entry.namespace):
            event = Event(kind, entry, reader=self._store.reader, old=old, initial=not self.synced.is_set())
            for registration in registrations:
                registration.see(event)
