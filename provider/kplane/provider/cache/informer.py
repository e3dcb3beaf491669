"""Mirrors the objects of a kind in memory, and passes every change to handlers."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NoReturn, TypeVar

from typing_extensions import override

from kplane.provider.aio.backoff import Backoff
from kplane.provider.aio.cancellation import end_tasks
from kplane.provider.cache.entry import Entry, EntryReader, Key, Object, version_of
from kplane.provider.cache.event import Event, EventHandler, Handlers, Registration
from kplane.provider.cache.feed import Feed, FeedState, Refusal
from kplane.provider.cache.mirror import Mirror, Transform
from kplane.provider.cache.namespaces import Namespaces
from kplane.provider.cache.parts import Part, Parts
from kplane.provider.cache.scope import CacheScope
from kplane.provider.cache.selectors import parse_label_selector
from kplane.provider.cache.server_state import ServerState
from kplane.provider.cache.store import Extract, Store
from kplane.provider.client.client import Client
from kplane.provider.client.kinds import parse_kind
from kplane.provider.client.resources import Resource
from kplane.provider.client.typed import TypedKind
from kplane.provider.client.written import Written
from kplane.provider.errors import ClusterNotReady, Forbidden, NotServed
from kplane.provider.logs import log_fields

__all__ = ["Informer", "Transform"]

Objects = list[Object]
Entries = list[Entry]
Keys = list[Key]
T = TypeVar("T")

_STATES: Final[tuple[FeedState, ...]] = ("refused", "unreachable", "connecting", "ready")


class Informer:
    """Mirrors the objects of a kind in memory: from `start` until `stop`, or while `run` runs.

    `namespace`, `label_selector`, `field_selector` and `name` restrict the objects; see `CacheScope`. Each namespace
    has its own list and watch, and `Namespaces` may change at any time. Reads outside of the scope raise ProviderError.

    Objects are stored as bytes, without managedFields, until they are read. Each read makes a new object, which the
    reader may change. With `metadata_only`, the server sends only apiVersion, kind and metadata.

    `limits.list_bytes` of the client limits the size of all objects, if it is set. A server that sends more counts as
    unreachable, and the cached objects stay. `cluster` is a name for logs and task names. Informers of the same server
    share `server`.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        namespace: str | Iterable[str] | Namespaces | None = None,
        name: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        metadata_only: bool = False,
        transform: Transform | None = None,
        server: ServerState | None = None,
        cluster: str = "",
        relist_seconds: float = 3600.0,
        watch_seconds: float = 300.0,
        idle_timeout_seconds: float = 120.0,
        backoff: Backoff | None = None,
    ) -> None:
        self.resource = resource
        self.metadata_only = metadata_only
        if isinstance(namespace, str):
            namespace = (namespace,)
        self.scope: Final = CacheScope(
            namespaces=namespace if isinstance(namespace, Namespaces) else tuple(namespace or ()),
            name=name,
            label_selector=label_selector,
            field_selector=field_selector,
        )
        """Selects the objects that the informer mirrors."""
        self.synced = asyncio.Event()
        """Set once the first list is complete; cleared by `stop`. Added namespaces do not clear it."""
        self._cluster = cluster
        self._address = client.config.server
        self._matches = parse_label_selector(label_selector or "")
        self._reader = EntryReader(resource, server=self._address, metadata_only=metadata_only)
        self._store = Store(self._reader)
        self._handlers = Handlers()
        server = server or ServerState()

        def follow(scope: CacheScope) -> Part:
            mirror = Mirror(
                self._store,
                self._handlers,
                namespace=next(iter(scope.namespaces), None),
                transform=transform,
                bytes_at_most=client.limits.list_bytes,
                changed=self._changed,
            )
            feed = Feed(
                client,
                self._reader,
                mirror,
                server=server,
                scope=scope,
                relist_seconds=relist_seconds,
                watch_seconds=watch_seconds,
                idle_timeout_seconds=idle_timeout_seconds,
                backoff=copy.copy(backoff),
            )
            return Part(mirror, feed)

        self._parts = Parts(self.scope, follow, changed=self._changed, name=cluster)
        self._state_changed = asyncio.Event()
        """Set and replaced when the informer is synced, refused or stopped."""
        self._task: asyncio.Task[NoReturn] | None = None
        self._stopped = False
        self._closed = False

    @override
    def __repr__(self) -> str:
        return f"Informer({self}{', metadata_only=True' if self.metadata_only else ''})"

    @override
    def __str__(self) -> str:
        return f"{self.resource.plural} {self.scope}".rstrip()

    @property
    def state(self) -> FeedState:
        """Whether the objects are up to date: ready, connecting (the first time), unreachable, or refused."""
        states = self.feed_states
        for state in _STATES:
            if state in states:
                return state
        return "ready"

    @property
    def feed_states(self) -> Collection[FeedState]:
        """States of the feeds, without namespaces that were added and whose first list is not complete."""
        states: set[FeedState] = {feed.state for feed in self.feeds}
        return states - {"connecting"} if self.synced.is_set() else states

    @property
    def down_seconds(self) -> float:
        """Seconds since a watch failed and was not open again; 0 while all are open."""
        return max((feed.down_seconds for feed in self.feeds), default=0.0)

    @property
    def error(self) -> str:
        """Last error of a feed: the server is unreachable, or refuses the kind."""
        return next((feed.error for feed in self.feeds if feed.error), "")

    @property
    def refusal(self) -> Refusal | None:
        """Reason of the refusal, if the server refuses the kind."""
        return next((feed.refusal for feed in self.feeds if feed.refusal is not None), None)

    @property
    def restarts(self) -> Mapping[str, int]:
        """Number of watches that ended, by reason."""
        return self._parts.restarts

    @property
    def feeds(self) -> tuple[Feed, ...]:
        """Feeds of the informer: one for each namespace of the scope, or a single one for all."""
        return self._parts.feeds

    @property
    def version(self) -> int:
        """resourceVersion up to which the cache has every change, and handlers know of it.

        Lists and bookmarks count as well as objects. The value is 0 before the first list, and while it is unknown.
        """
        return min((feed.version for feed in self.feeds), default=0)

    @property
    def has_handlers(self) -> bool:
        """Whether the informer has a handler."""
        return bool(self._handlers)

    @property
    def size_bytes(self) -> int:
        """Size of all objects in bytes."""
        return self._store.size_bytes

    def start(self) -> None:
        """Start mirroring in a task of its own, also after `stop`."""
        if self._task is None and not self._closed:
            if self._stopped:
                self._stopped = False
                for registration in self._handlers:
                    registration.restart()
            # An empty context: the task must not inherit the cluster of the reconcile that reads first.
            name = f"{self._cluster}: informer of {self}".removeprefix(": ")
            self._task = asyncio.create_task(self.run(), name=name, context=contextvars.Context())

    async def run(self, handler: EventHandler | None = None) -> NoReturn:
        """Mirror until cancelled, with `handler` registered meanwhile. May be called again afterwards."""
        registration = self.add_handler(handler) if handler is not None else None
        try:
            with log_fields(**({"cluster": self._cluster} if self._cluster else {})):
                await self._parts.run()
        finally:
            if registration is not None:
                registration.remove()

    async def stop(self) -> None:
        """Stop, and drop the objects. Handlers stay registered, and get all existing objects after the next `start`."""
        self._stopped = True
        task, self._task = self._task, None
        # Reset before the first await, because another task may start the informer again during it.
        self.synced.clear()
        self._store.clear()
        self._parts.reset()
        for registration in self._handlers:
            registration.pause()
        self._wake_waiters()
        if task is not None:
            await end_tasks([task])

    async def aclose(self) -> None:
        """Stop for good, and drop handlers and objects. No handler is called again."""
        self._closed = True
        for registration in self._handlers:
            registration.remove()
        await self.stop()

    def is_synced(self, *, namespace: str | None = None) -> bool:
        """Tell whether the first list of a namespace is complete (None: of all initial namespaces of the scope)."""
        part = self._parts.of(namespace)
        if part is not None:
            return part.mirror.synced
        return self.synced.is_set() and (namespace is None or not self.scope.is_namespaced)

    async def wait_synced(self, *, namespace: str | None = None, unless_refused: bool = False) -> None:
        """Wait until `is_synced`. Raises ClusterNotReady if the informer is stopped before.

        With `unless_refused`, the method raises NotServed or Forbidden as soon as the server refuses the kind.
        """
        self._require_open()
        while not self.is_synced(namespace=namespace):
            self.scope.require(self.resource, namespace=namespace)
            if unless_refused:
                self._require_served(namespace)
            await self._state_changed.wait()
            self._require_open()

    async def refresh(self) -> None:
        """List all objects again, and wait until the cache has every change from before this call.

        The watch alone is behind the server by an unknown time. Raises ClusterNotReady if the informer is stopped
        before.
        """
        awaited = {part: part.mirror.lists_begun + 1 for part in self._parts}
        for part in awaited:
            part.feed.relist()
        self._require_open()
        while any(part.mirror.last_listed < number for part, number in awaited.items() if part in self._parts):
            await self._state_changed.wait()
            self._require_open()

    def observe(self, written: Written) -> None:
        """Apply the answer to a write of this process, before the watch sends the event.

        Pass this method to `Client.observe_writes`; a `Cache` does so for its informers. Handlers get the change now,
        and not again from the watch. Answers older than the cached state are dropped. So are other kinds and objects
        outside of the scope. A scope with a field selector takes no answers, because only the API server can evaluate
        the selector.
        """
        if self._stopped or self._closed or written.resource != self.resource:
            return
        if self.scope.field_selector is not None or not self.scope.covers(
            name=written.name, namespace=written.namespace
        ):
            return
        part = self._parts.of(written.namespace)
        if part is None:
            return
        if written.object is None:
            version = version_of(written.resource_version)
            part.mirror.observe_removal((written.namespace, written.name), uid=written.uid, version=version)
        else:
            # The write itself has succeeded, so a malformed answer raises no error. The watch brings the object.
            with contextlib.suppress(ValueError):
                entry = self._reader.encode(written.object)
                part.mirror.observe(entry, is_selected=self._matches(entry.labels))

    def add_handler(self, handler: EventHandler, *, namespace: str | None = None) -> Registration:
        """Pass all existing objects to a handler, as ADDED with `initial`, and every later change.

        The handler misses no change and gets none twice. If an object changes before its initial event, that event
        carries the new state. If it is deleted before, the handler gets only DELETED. The handler is not called before
        this method returns. With `namespace`, the handler gets only objects of that namespace, at no higher cost for
        many such handlers. A registration outlives `stop` and the next `start`; see `Registration`. Raises
        ClusterNotReady if the informer is stopped, and ProviderError for a namespace outside of its scope.
        """
        self._require_open()
        registration = Registration(
            handler,
            pending=self.keys(namespace=namespace),
            present=self._initial_event,
            source_synced=self.synced,
            removed=lambda ended: self._handlers.remove(ended, namespace=namespace),
        )
        self._handlers.add(registration, namespace=namespace)
        return registration

    def add_index(self, field: str, extract: Extract) -> None:
        """Index a field. Adding the same function twice has no effect. All objects in the cache are decoded at once."""
        self._store.add_index(field, extract)

    def get(self, name: str, *, namespace: str | None = None) -> Object | None:
        """Return the cached object, if any. Raises ClusterNotReady if the informer is stopped."""
        entry = self.entry(name, namespace=namespace)
        return None if entry is None else self._reader.decode(entry)

    def entry(self, name: str, *, namespace: str | None = None) -> Entry | None:
        """Return the entry of an object, with decoded labels and common metadata. Raises as `get`."""
        self._require_open()
        self.scope.require(self.resource, name=name, namespace=namespace)
        return self._store.get((namespace or "", name))

    def list(
        self,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field: Mapping[str, str] | None = None,
    ) -> Objects:
        """Return the cached objects; `namespace=None` selects all namespaces of the scope.

        `field` are values of indexed fields, all of which must match. Raises ProviderError for a field without index
        and an invalid selector, and ClusterNotReady if the informer is stopped.
        """
        entries = self.entries(namespace=namespace, label_selector=label_selector, field=field)
        return [self._reader.decode(entry) for entry in entries]

    def entries(
        self,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field: Mapping[str, str] | None = None,
    ) -> Entries:
        """Return the entries of these objects, with decoded labels and common metadata. Raises as `list`."""
        self._require_open()
        self.scope.require(self.resource, namespace=namespace)
        return self._store.select(namespace=namespace, label_selector=label_selector, field=field)

    def keys(
        self,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field: Mapping[str, str] | None = None,
    ) -> Keys:
        """Return namespace and name of each object that `list` would return, without decoding the objects."""
        return [entry.key for entry in self.entries(namespace=namespace, label_selector=label_selector, field=field)]

    def decode(self, entry: Entry) -> Object:
        """Return the object of an entry as a new dict."""
        return self._reader.decode(entry)

    def decode_as(self, entry: Entry, kind: TypedKind[T], *, source: str) -> T:
        """Return the object of an entry as an instance of a class; see `EntryReader.decode_as`."""
        return self._reader.decode_as(entry, kind, source=source)

    def encoded(self, entry: Entry) -> bytes:
        """Return the JSON of the object of an entry, with apiVersion and kind."""
        return self._reader.encoded(entry)

    def _changed(self) -> None:
        """React to a part that is synced or refused, or has left the scope."""
        if not self.synced.is_set() and self._parts.synced:
            self.synced.set()
            for registration in self._handlers:
                registration.settle()
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        news, self._state_changed = self._state_changed, asyncio.Event()
        news.set()

    def _require_open(self) -> None:
        # Callers must not take a dropped object for a deleted one.
        if self._stopped or self._closed:
            raise ClusterNotReady(f"the cache of {self._address} was stopped")

    def _require_served(self, namespace: str | None) -> None:
        where = f"cluster {self._cluster!r}" if self._cluster else self._address
        part = self._parts.of(namespace)
        for feed in self.feeds if part is None else (part.feed,):
            if feed.refusal is None:
                continue
            why = feed.refusal.message
            if feed.refusal.reason == "NotServed":
                raise NotServed(f"{where} serves no {parse_kind(self.resource)}: {why}; install its CRD there")
            what_to_do = "grant that, or narrow its CacheScope"
            raise Forbidden(403, "Forbidden", f"{where} does not let {feed} be read: {why}; {what_to_do}")

    def _initial_event(self, key: Key) -> Event | None:
        """Return the initial event of a cached object for a new handler."""
        entry = self._store.get(key)
        return None if entry is None else Event("ADDED", entry, reader=self._reader, initial=True)
