"""Mirrors the objects of a kind, and passes every change to handlers."""

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
    """Mirrors the objects of a kind: from `start` until `stop`, as a `Cache` does, or while `run` runs.

    `namespace`, `label_selector`, `field_selector` and `name` narrow it down; see `CacheScope`. Several namespaces are
    listed and watched one by one, and may change if they are `Namespaces`. Reads outside of that raise ProviderError.

    Objects stay bytes, without managedFields, until they are read. Each read makes a new object, which the reader may
    change. With `metadata_only`, objects have only apiVersion, kind and metadata, and the server sends no more.

    The objects take at most `limits.list_bytes` of the client, if that is set. A server with more of them counts as
    unreachable, and the objects that are known stay. `cluster` is a name for logs and task names. Informers of one
    server share `server`.
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
        """The objects that it mirrors."""
        self.synced = asyncio.Event()
        """Set once all objects were read for the first time; cleared by `stop`. Added namespaces leave it set."""
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
        self._news = asyncio.Event()
        """Set, and replaced, when it is synced, refused or stopped."""
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
        return next((state for state in _STATES if state in states), "ready")

    @property
    def feed_states(self) -> Collection[FeedState]:
        """States of what follows the objects; a namespace that was added and is not read yet does not count."""
        states = {feed.state for feed in self.feeds}
        return states - {"connecting"} if self.synced.is_set() else states

    @property
    def error(self) -> str:
        """Why the server is unreachable, or refuses the kind."""
        return next((feed.error for feed in self.feeds if feed.error), "")

    @property
    def refusal(self) -> Refusal | None:
        """Why the server refuses the kind, if it does."""
        return next((feed.refusal for feed in self.feeds if feed.refusal is not None), None)

    @property
    def restarts(self) -> Mapping[str, int]:
        """Number of watches that ended, by reason."""
        return self._parts.restarts

    @property
    def feeds(self) -> tuple[Feed, ...]:
        """What follows the objects: one feed for each namespace of the scope, or one for all."""
        return self._parts.feeds

    @property
    def has_handlers(self) -> bool:
        """Whether a handler is left that was added and not removed."""
        return bool(self._handlers)

    @property
    def size_bytes(self) -> int:
        """Bytes of all objects."""
        return self._store.size_bytes

    def start(self) -> None:
        """Start to mirror, in a task of its own; also after `stop`."""
        if self._task is None and not self._closed:
            if self._stopped:
                self._stopped = False
                for registration in self._handlers:
                    registration.restart()
            # In a context of its own, not in that of the reconcile that needed it first.
            name = f"{self._cluster}: informer of {self}".removeprefix(": ")
            self._task = asyncio.create_task(self.run(), name=name, context=contextvars.Context())

    async def run(self, handler: EventHandler | None = None) -> NoReturn:
        """Mirror until cancelled; may be called again later. `handler` is added for that time."""
        registration = self.add_handler(handler) if handler is not None else None
        try:
            with log_fields(**({"cluster": self._cluster} if self._cluster else {})):
                await self._parts.run()
        finally:
            if registration is not None:
                registration.remove()

    async def stop(self) -> None:
        """Stop, and forget the objects. Handlers stay: after the next `start` they get the objects that are there."""
        self._stopped = True
        task, self._task = self._task, None
        # All of this before anything is awaited: it may be started again meanwhile.
        self.synced.clear()
        self._store.clear()
        self._parts.reset()
        for registration in self._handlers:
            registration.pause()
        self._tell()
        if task is not None:
            await end_tasks([task])

    async def aclose(self) -> None:
        """Stop for good, and forget handlers and objects; no handler is called again."""
        self._closed = True
        for registration in self._handlers:
            registration.remove()
        await self.stop()

    def is_synced(self, *, namespace: str | None = None) -> bool:
        """Tell whether all objects of a namespace of the scope (None: of all at the start) were read once."""
        part = self._parts.of(namespace)
        if part is not None:
            return part.mirror.synced
        return self.synced.is_set() and (namespace is None or not self.scope.is_namespaced)

    async def wait_synced(self, *, namespace: str | None = None, unless_refused: bool = False) -> None:
        """Wait until `is_synced`. Raises ClusterNotReady if it is stopped before.

        With `unless_refused` it raises NotServed or Forbidden as soon as the server refuses the kind.
        """
        self._require_open()
        while not self.is_synced(namespace=namespace):
            self.scope.require(self.resource, namespace=namespace)
            if unless_refused:
                self._require_served(namespace)
            await self._news.wait()
            self._require_open()

    def observe(self, written: Written) -> None:
        """Take in what a write of this process made of an object, before the watch brings it.

        Pass it to `Client.observe_writes`; a `Cache` does so for its informers. Handlers see the change now, and not
        again. What is older than what the watch brought is dropped. So are other kinds, objects outside of the scope,
        and all objects of a scope with a field selector, because only the API server knows what that means.
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
            # A ValueError is the concern of the watch: the write itself has succeeded.
            with contextlib.suppress(ValueError):
                entry = self._reader.encode(written.object)
                part.mirror.observe(entry, is_selected=self._matches(entry.labels))

    def add_handler(self, handler: EventHandler, *, namespace: str | None = None) -> Registration:
        """Pass all present objects to a handler, as ADDED with `initial`, and every later change.

        The handler misses no change and sees none twice: an object that changes before it was handed over comes in its
        new state, and one that is deleted before comes as DELETED alone. The handler is not called before this method
        returns. With `namespace` it sees only objects of that namespace; many such handlers cost no more than one.
        It outlives `stop` and the next `start`; see `Registration`. Raises ClusterNotReady if the informer is stopped,
        and ProviderError for a namespace outside of its scope.
        """
        self._require_open()
        registration = Registration(
            handler,
            pending=self.keys(namespace=namespace),
            present=self._present,
            source_synced=self.synced,
            removed=lambda ended: self._handlers.remove(ended, namespace=namespace),
        )
        self._handlers.add(registration, namespace=namespace)
        return registration

    def add_index(self, field: str, extract: Extract) -> None:
        """Index a field; the same function may be added twice. Present objects are decoded at once."""
        self._store.add_index(field, extract)

    def get(self, name: str, *, namespace: str | None = None) -> Object | None:
        """Return an object as it is known now. Raises ClusterNotReady if the informer is stopped."""
        entry = self.entry(name, namespace=namespace)
        return None if entry is None else self._reader.decode(entry)

    def entry(self, name: str, *, namespace: str | None = None) -> Entry | None:
        """Return what is decoded of an object anyway, such as its labels. Raises as `get`."""
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
        """Return the objects that are known now; `namespace=None` means all namespaces of the scope.

        `field` are values of indexed fields, all of which must match. Raises ProviderError for a field without index
        and an invalid selector, and ClusterNotReady if the informer is stopped.
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
        self.scope.require(self.resource, namespace=namespace)
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

    def decode(self, entry: Entry) -> Object:
        """Return the object of an entry, a new one each time."""
        return self._reader.decode(entry)

    def decode_as(self, entry: Entry, kind: TypedKind[T], *, source: str) -> T:
        """Return the object of an entry as an instance of a class; see `EntryReader.decode_as`."""
        return self._reader.decode_as(entry, kind, source=source)

    def encoded(self, entry: Entry) -> bytes:
        """Return the JSON of the object of an entry, with apiVersion and kind."""
        return self._reader.encoded(entry)

    def _changed(self) -> None:
        """Note that a part is synced or refused, or has left the scope."""
        if not self.synced.is_set() and self._parts.synced:
            self.synced.set()
            for registration in self._handlers:
                registration.settle()
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _require_open(self) -> None:
        # What is forgotten must not be taken for gone.
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

    def _present(self, key: Key) -> Event | None:
        """Return the event that hands a present object to a new handler."""
        entry = self._store.get(key)
        return None if entry is None else Event("ADDED", entry, reader=self._reader, initial=True)
