"""The cache of a namespace that acts as a cluster: a part of the cache of the host."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from typing_extensions import override

from kplane.provider.aio.cancellation import end_tasks
from kplane.provider.cache.cache import Cache, InformerKey
from kplane.provider.cache.entry import Entry, EntryReader
from kplane.provider.cache.event import Event, EventHandler, Registration
from kplane.provider.cache.feed import Feed
from kplane.provider.cache.informer import Informer
from kplane.provider.cache.scope import CacheScope
from kplane.provider.cache.store import Extract, extract_of
from kplane.provider.client.client import Client
from kplane.provider.client.kinds import BUILT_IN, KindName, parse_kind, resource_of
from kplane.provider.client.resources import Resource
from kplane.provider.client.typed import Kind, ObjectT
from kplane.provider.client.written import Written
from kplane.provider.errors import ClusterNotReady, ProviderError
from kplane.provider.providers.namespace.view import DEFAULT, NamespaceView

__all__ = ["NamespaceCache"]

Object = dict[str, Any]
Entries = list[Entry]


class NamespaceCache(Cache):
    """Reads a namespace in the cache of the `host`, which has a single informer of a kind for all namespaces.

    When this cache ends or pauses, its handlers stop and informers of the host continue. A `scope_of` that selects by
    name, labels or fields adds an informer of the host for each selection. The host indexes a field by the result of
    `extract` for an object in the view of its namespace. So each namespace may add the same index, which covers the
    objects of all namespaces.
    """

    def __init__(
        self,
        host: Cache,
        client: Client,
        *,
        view: NamespaceView,
        scope_of: Callable[[Resource], CacheScope] = lambda _resource: CacheScope(),
    ) -> None:
        super().__init__(client, name=view.namespace, scope_of=scope_of)
        self._host = host
        self._view = view

    @override
    def informer(self, kind: Kind[Any], *, metadata_only: bool = False, scope: CacheScope | None = None) -> Informer:
        """Return the informer of a kind, as `Cache.informer`; raises NotFound for cluster-scoped kinds."""
        if self._closed:
            raise ProviderError(f"{self!r} is closed")
        resource = resource_of(kind)
        self._view.to_read(resource, None)
        scope = self._scope(resource) if scope is None else scope
        selected = replace(scope, namespaces=())
        # Without a selection the host decides which objects it caches.
        whole = self._host.informer(
            resource, metadata_only=metadata_only, scope=None if selected == CacheScope() else selected
        )
        key = InformerKey(resource, metadata_only, scope)
        part = self._informers.get(key)
        if not isinstance(part, _Part) or part.whole is not whole:
            part = self._informers[key] = _Part(whole, self._client, self._view, scope=scope)
        part.start()
        return part

    @override
    def index_field(
        self,
        kind: Kind[ObjectT],
        field: str,
        extract: Callable[[ObjectT], Iterable[str]],
        *,
        metadata_only: bool = False,
    ) -> None:
        name = parse_kind(kind)
        within = _Within(name, extract_of(kind, extract))
        self._host.index_field(str(name), field, within, metadata_only=metadata_only)


@dataclass(frozen=True, slots=True)
class _Within:
    """Extracts values from an object in the view of its namespace. Equal for all namespaces, which share the index."""

    kind: KindName
    extract: Extract

    def __call__(self, found: Object) -> list[str]:
        # All custom kinds have their namespace in the same field.
        resource = BUILT_IN.get(str(self.kind)) or Resource(*self.kind, plural="", namespaced=True)
        view = NamespaceView(found["metadata"].get("namespace", ""))
        return [*self.extract(view.inward(resource, found))]


class _Reader(EntryReader):
    """Decodes entries of the host to objects of the view."""

    def __init__(self, resource: Resource, *, server: str, metadata_only: bool, view: NamespaceView) -> None:
        super().__init__(resource, server=server, metadata_only=metadata_only)
        self._view = view

    @override
    def decode(self, entry: Entry) -> Object:
        return self._view.inward(self.resource, super().decode(entry))

    @override
    def decode_metadata(self, entry: Entry) -> Object:
        found: Object = self._view.inward(self.resource, {"metadata": super().decode_metadata(entry)})["metadata"]
        return found


class _Part(Informer):
    """A namespace of an informer of the host, which runs the watch."""

    def __init__(self, whole: Informer, client: Client, view: NamespaceView, *, scope: CacheScope) -> None:
        super().__init__(
            client,
            whole.resource,
            namespace=scope.namespaces,
            metadata_only=whole.metadata_only,
            cluster=view.namespace,
        )
        self.whole = whole
        self.synced = whole.synced
        self._view = view
        self._reader = _Reader(
            whole.resource, server=client.config.server, metadata_only=whole.metadata_only, view=view
        )
        self._registrations: list[Registration] = []

    @property
    @override
    def feeds(self) -> tuple[Feed, ...]:
        return self.whole.feeds

    @property
    @override
    def restarts(self) -> Mapping[str, int]:
        """Always empty: the informer of the host counts the restarts."""
        return {}

    @property
    @override
    def has_handlers(self) -> bool:
        return any(not each.removed for each in self._registrations)

    @override
    def start(self) -> None:
        """Call the handlers again after `stop`; the informer of the host runs independently."""
        if self._stopped and not self._closed:
            self._stopped = False
            # A stopped informer of the host calls the handlers at its next start.
            with contextlib.suppress(ClusterNotReady):
                for registration in self._registrations:
                    registration.restart(self.whole.keys(namespace=self._view.namespace))

    @override
    async def stop(self) -> None:
        """Call no handler until the next `start`; the host's informer continues."""
        self._stopped = True
        self._wake_waiters()
        for registration in self._registrations:
            registration.pause()

    @override
    async def run(self, handler: EventHandler | None = None) -> NoReturn:
        registration = self.add_handler(handler) if handler is not None else None
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            if registration is not None:
                registration.remove()
        raise AssertionError

    @override
    async def aclose(self) -> None:
        """Remove the handlers of this cache."""
        self._closed = True
        self._wake_waiters()
        for registration in self._registrations:
            registration.remove()
        self._registrations.clear()

    @override
    def is_synced(self, *, namespace: str | None = None) -> bool:
        return self.whole.is_synced(namespace=self._view.namespace)

    @override
    async def wait_synced(self, *, namespace: str | None = None, unless_refused: bool = False) -> None:
        self._require_open()
        title = f"{self._cluster}: {self}"
        whole = asyncio.create_task(
            self.whole.wait_synced(namespace=self._view.namespace, unless_refused=unless_refused), name=f"{title}: sync"
        )
        try:
            while not whole.done():
                # Wait for the end of this part too: the informer of the host may wait for longer.
                ended = asyncio.create_task(self._state_changed.wait(), name=f"{title}: wait for its end")
                await asyncio.wait((whole, ended), return_when=asyncio.FIRST_COMPLETED)
                await end_tasks([ended])
                self._require_open()
            await whole
        finally:
            await end_tasks([whole])
        self._require_open()

    @override
    def add_handler(self, handler: EventHandler, *, namespace: str | None = None) -> Registration:
        def see(event: Event) -> None:
            old = event.old_entry.with_namespace(DEFAULT) if event.old_entry is not None else None
            entry = event.entry.with_namespace(DEFAULT)
            handler(Event(event.kind, entry, reader=self._reader, old=old, initial=event.initial))

        self._require_open()
        registration = self.whole.add_handler(see, namespace=self._view.to_read(self.resource, namespace))
        # Forget handlers that their owners have removed.
        self._registrations = [each for each in self._registrations if not each.removed] + [registration]
        return registration

    @override
    def add_index(self, field: str, extract: Extract) -> None:
        self.whole.add_index(field, _Within(parse_kind(self.resource), extract))

    @override
    def observe(self, written: Written) -> None:
        """Ignore the write: `NamespaceClient` reports its writes to the host."""

    @override
    def entry(self, name: str, *, namespace: str | None = None) -> Entry | None:
        self._require_open()
        self.scope.require(self.resource, name=name, namespace=namespace)
        found = self.whole.entry(name, namespace=self._view.namespace) if namespace == DEFAULT else None
        return None if found is None else found.with_namespace(DEFAULT)

    @override
    def entries(
        self, *, namespace: str | None = None, label_selector: str | None = None, field: Mapping[str, str] | None = None
    ) -> Entries:
        self._require_open()
        self.scope.require(self.resource, namespace=namespace)
        target = self._view.to_read(self.resource, namespace)
        found = self.whole.entries(namespace=target, label_selector=label_selector, field=field)
        return [each.with_namespace(DEFAULT) for each in found]
