"""The objects of one cluster, mirrored kind by kind on demand."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, cast, overload

from typing_extensions import TypeVar, override

from kplane.provider.aio.overflow import unanswered
from kplane.provider.cache.entry import Entry
from kplane.provider.cache.feed import FeedState, Refusal
from kplane.provider.cache.informer import Informer, Transform
from kplane.provider.cache.scope import CacheScope
from kplane.provider.cache.server_state import ServerState
from kplane.provider.cache.store import Extract, extract_of, require_same
from kplane.provider.client.client import Client
from kplane.provider.client.keys import Named, locate
from kplane.provider.client.kinds import KindName, parse_kind, resource_of
from kplane.provider.client.resources import Resource
from kplane.provider.client.typed import Kind, ObjectT, TypedKind, cause_of, typed_of
from kplane.provider.client.written import Written
from kplane.provider.errors import ClusterNotReady, DecodeFailed, NotFound, ProviderError

__all__ = ["Cache", "Decoder", "InformerKey"]

_STATES: Final[tuple[FeedState, ...]] = ("unreachable", "connecting", "ready")
T = TypeVar("T", default=Any)
"""Result of a decoder. It has a default because it follows `ObjectT`, which has one (PEP 696)."""
Listed = list[T]
Decoder = Callable[[bytes], T]
"""Reads the JSON of an object, such as `msgspec.json.Decoder(Widget).decode` or `Widget.model_validate_json`."""


class InformerKey(NamedTuple):
    """Key of a shared informer: callers with equal keys share it."""

    resource: Resource
    metadata_only: bool
    scope: CacheScope


class Cache:
    """Mirrors each kind that is read, by one informer that all readers share.

    An informer starts with the first read of its kind, and runs until `remove`, `pause` or `aclose`. `get` and `list`
    wait at most `sync_timeout_seconds` until the informer has all objects, then raise ClusterNotReady. They raise
    NotServed or Forbidden as soon as the API server refuses the kind: it has no such kind, or RBAC denies the read.
    Objects that were read before stay readable.

    Writes through the client are in the cache when they return, so that the next read sees them. Informers of a scope
    with a field selector wait for the watch, as do `delete_all` and `request` of the client.

    `scope_of` narrows a kind down; reads outside of its `CacheScope` raise ProviderError. `transform` changes each
    object once before it is stored, and must keep its identity. `name` is the name of the cluster, for logs and task
    names. `server` records whether the API server can be reached. Each informer lists all objects again every
    `relist_seconds`. The caller owns the client and closes it.
    """

    def __init__(
        self,
        client: Client,
        *,
        name: str = "",
        transform: Transform | None = None,
        scope_of: Callable[[Resource], CacheScope] = lambda _resource: CacheScope(),
        server: ServerState | None = None,
        sync_timeout_seconds: float = 30.0,
        relist_seconds: float = 3600.0,
    ) -> None:
        self._client = client
        self._name = name
        self._transform = transform
        self._scope_of = scope_of
        self._sync_timeout_seconds = sync_timeout_seconds
        self._relist_seconds = relist_seconds
        self._server = server or ServerState()
        self._scopes: dict[Resource, CacheScope] = {}
        self._informers: dict[InformerKey, Informer] = {}
        self._indexes: dict[tuple[KindName, bool], dict[str, Extract]] = {}
        self._ended_restarts: Counter[str] = Counter()
        self._closed = False
        client.observe_writes(self.observe)

    @override
    def __repr__(self) -> str:
        return f"Cache({self._name or self._client.config.server!r})"

    @property
    def state(self) -> FeedState:
        """The worst state of the feeds of all informers; ready without informers. Refused kinds do not count."""
        states = {state for informer in self._informers.values() for state in informer.feed_states}
        for state in _STATES:
            if state in states:
                return state
        return "ready"

    @property
    def error(self) -> str:
        """Last error of an informer that cannot reach the server; empty if every informer can."""
        feeds = (feed for informer in self._informers.values() for feed in informer.feeds)
        return next((feed.error for feed in feeds if feed.state == "unreachable"), "")

    @property
    def refusals(self) -> Mapping[str, Refusal]:
        """Refusals of the server by name of the kind: kinds that it does not serve, or does not let be read."""
        refusals = ((str(parse_kind(key.resource)), informer.refusal) for key, informer in self._informers.items())
        return {kind: refusal for kind, refusal in refusals if refusal is not None}

    @property
    def restarts(self) -> Mapping[str, int]:
        """Number of watches that ended, by reason: closed, expired, refused, unreachable, failed."""
        return sum((Counter(informer.restarts) for informer in self._informers.values()), self._ended_restarts)

    def size_bytes(self) -> Mapping[str, int]:
        """Return the size of the stored objects in bytes, by kind."""
        sizes: Counter[str] = Counter()
        for key, informer in self._informers.items():
            sizes[key.resource.kind] += informer.size_bytes
        return sizes

    def informer(self, kind: Kind[Any], *, metadata_only: bool = False, scope: CacheScope | None = None) -> Informer:
        """Return the informer of a kind, and start it if it is new or paused.

        Calls with equal arguments return the same informer. With `metadata_only`, the informer keeps only apiVersion,
        kind and metadata. `scope` replaces the scope of the cache, for example to follow a single object. Raises
        ProviderError if the cache is closed. Also raises it for the name of a kind that Kubernetes does not define:
        await `client.resource(name)` before.
        """
        resource = resource_of(kind)
        key = InformerKey(resource, metadata_only, self._scope(resource) if scope is None else scope)
        informer = self._informers.get(key)
        if informer is None:
            if self._closed:
                raise ProviderError(f"{self!r} is closed")
            informer = self._informers[key] = self._make_informer(key)
        informer.start()
        return informer

    def index_field(
        self,
        kind: Kind[ObjectT],
        field: str,
        extract: Callable[[ObjectT], Iterable[str]],
        *,
        metadata_only: bool = False,
    ) -> None:
        """Index a field of a kind by the values that `extract` returns for an object.

        `extract` gets an instance if `kind` is a class, else a dict. An object that cannot be decoded is logged, and
        no read by the field returns it.

        Adding the same function twice has no effect; another function for the field raises ProviderError. The call
        decodes all objects in the cache, so index a large collection before its first read.
        """
        name = parse_kind(kind)
        plain = extract_of(kind, extract)
        existing = self._indexes.setdefault((name, metadata_only), {}).setdefault(field, plain)
        require_same(existing, plain, kind=name, field=field)
        for key, informer in self._informers.items():
            if (parse_kind(key.resource), key.metadata_only) == (name, metadata_only):
                informer.add_index(field, plain)

    @overload
    async def get(
        self,
        kind: Kind[ObjectT],
        key: str | Named,
        *,
        namespace: str | None = None,
        metadata_only: bool = False,
    ) -> ObjectT: ...
    @overload
    async def get(
        self,
        kind: Kind[Any],
        key: str | Named,
        *,
        namespace: str | None = None,
        metadata_only: bool = False,
        decoder: Decoder[T],
    ) -> T: ...
    async def get(
        self,
        kind: Kind[ObjectT],
        key: str | Named,
        *,
        namespace: str | None = None,
        metadata_only: bool = False,
        decoder: Decoder[T] | None = None,
    ) -> ObjectT | T:
        """Return a copy of the cached object, or the result of `decoder` for its JSON.

        If `kind` is a class that `typed_kind` has declared, the object is an instance of it. All readers share the
        instance, which is decoded once for each resourceVersion: do not change it.

        `key` is a name, with `namespace` for namespaced kinds, or an object with both, such as a `Request`. `kind` may
        be the name of any kind; see `Client.resource`. `decoder` is for example `msgspec.json.Decoder(Widget).decode`.

        Raises NotFound; ClusterNotReady before the first list is complete; NotServed and Forbidden (see the class);
        ProviderError for an object outside of the scope; DecodeFailed if the decoder or the class fails.
        """
        typed = _class_of(kind, metadata_only=metadata_only)
        resource = await self._client.resource(kind)
        name, namespace = locate(key, namespace=namespace)
        resource.require_namespace(namespace, name=name)
        informer = await self._synced(resource, metadata_only=metadata_only, name=name, namespace=namespace)
        entry = informer.entry(name, namespace=namespace)
        if entry is None:
            raise self._not_found(informer, "/".join(filter(None, (namespace, name))))
        return self._decoded(informer, entry, typed, decoder)

    @overload
    async def list(
        self,
        kind: Kind[ObjectT],
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field: Mapping[str, str] | None = None,
        metadata_only: bool = False,
    ) -> Listed[ObjectT]: ...
    @overload
    async def list(
        self,
        kind: Kind[Any],
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field: Mapping[str, str] | None = None,
        metadata_only: bool = False,
        decoder: Decoder[T],
    ) -> Listed[T]: ...
    async def list(
        self,
        kind: Kind[ObjectT],
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field: Mapping[str, str] | None = None,
        metadata_only: bool = False,
        decoder: Decoder[T] | None = None,
    ) -> Listed[ObjectT] | Listed[T]:
        """Return copies of the cached objects of a kind, or an instance or the result of `decoder` for each.

        `namespace=None` selects all namespaces of the scope, except added namespaces whose first list is not complete.
        With such a namespace, the call waits for the list. `field` gives values of indexed fields, all of which must
        match. Raises as `get`, except NotFound, and ProviderError for a field without index or an invalid selector.
        """
        typed = _class_of(kind, metadata_only=metadata_only)
        resource = await self._client.resource(kind)
        informer = await self._synced(resource, metadata_only=metadata_only, namespace=namespace)
        entries = informer.entries(namespace=namespace, label_selector=label_selector, field=field)
        return cast("Listed[ObjectT]", [self._decoded(informer, entry, typed, decoder) for entry in entries])

    def observe(self, written: Written) -> None:
        """Apply the answer to a write to the cache; see `Informer.observe`. The client calls this method."""
        for informer in self._informers.values():
            informer.observe(written)

    async def remove(self, kind: Kind[Any]) -> None:
        """Stop all informers of a kind, and return when their watches have ended and their objects are dropped.

        Handlers of these informers are not called again, nor are handlers of controllers that watch the kind. The next
        read of the kind starts a new informer. A kind without informers is no error.
        """
        name = parse_kind(kind)
        removed = {key: informer for key, informer in self._informers.items() if parse_kind(key.resource) == name}
        self._informers = {key: informer for key, informer in self._informers.items() if key not in removed}
        await asyncio.gather(*map(self._close, removed.values()))

    async def pause(self) -> None:
        """Stop all informers, and drop all objects; the next read of a kind starts a new informer.

        Informers with handlers are kept. `resume`, or the next read of their kind, starts them again, and passes the
        objects that exist then to the handlers.
        """
        informers, self._informers = self._informers, {}
        for key, informer in informers.items():
            if informer.has_handlers:
                self._informers[key] = informer
        await asyncio.gather(
            *(informer.stop() if informer.has_handlers else self._close(informer) for informer in informers.values())
        )

    def resume(self) -> None:
        """Restart the informers that `pause` kept for their handlers."""
        for informer in self._informers.values():
            informer.start()

    async def aclose(self) -> None:
        """Stop all informers for good, and remove their handlers."""
        self._closed = True
        self._client.ignore_writes(self.observe)
        informers, self._informers = self._informers, {}
        await asyncio.gather(*map(self._close, informers.values()))

    async def _close(self, informer: Informer) -> None:
        await informer.aclose()
        self._ended_restarts.update(informer.restarts)

    def _make_informer(self, key: InformerKey) -> Informer:
        informer = Informer(
            self._client,
            key.resource,
            namespace=key.scope.namespaces,
            name=key.scope.name,
            label_selector=key.scope.label_selector,
            field_selector=key.scope.field_selector,
            metadata_only=key.metadata_only,
            transform=self._transform,
            server=self._server,
            cluster=self._name,
            relist_seconds=self._relist_seconds,
        )
        for field, extract in self._indexes.get((parse_kind(key.resource), key.metadata_only), {}).items():
            informer.add_index(field, extract)
        return informer

    def _scope(self, resource: Resource) -> CacheScope:
        scope = self._scopes.get(resource)
        if scope is None:
            scope = self._scope_of(resource)
            if scope.is_namespaced and not resource.namespaced:
                raise ProviderError(f"{parse_kind(resource)} is cluster-scoped: its CacheScope can have no namespaces")
            self._scopes[resource] = scope
        return scope

    async def _synced(
        self, resource: Resource, *, metadata_only: bool, name: str | None = None, namespace: str | None = None
    ) -> Informer:
        informer = self.informer(resource, metadata_only=metadata_only)
        if not informer.is_synced(namespace=namespace):
            # Check first: the cache would wait for a list that cannot contain the object.
            informer.scope.require(resource, name=name, namespace=namespace)
            with unanswered():
                try:
                    async with asyncio.timeout(self._sync_timeout_seconds):
                        await informer.wait_synced(namespace=namespace, unless_refused=True)
                except TimeoutError as error:
                    why = informer.error or f"nothing came for {self._sync_timeout_seconds:g} s"
                    raise ClusterNotReady(f"the {resource.plural} of {self!r} are not known yet: {why}") from error
        return informer

    def _not_found(self, informer: Informer, where: str) -> NotFound:
        kept = f", which keeps {informer}" if informer.scope != CacheScope() else ""
        return NotFound(404, "NotFound", f"{informer.resource} {where} is not in {self!r}{kept}")

    def _decoded(
        self, informer: Informer, entry: Entry, typed: TypedKind[ObjectT] | None, decoder: Decoder[T] | None
    ) -> ObjectT | T:
        if decoder is None:
            if typed is not None:
                return informer.decode_as(entry, typed, source=repr(self))
            return cast("ObjectT", informer.decode(entry))
        try:
            return decoder(informer.encoded(entry))
        except Exception as error:
            where = "/".join(filter(None, entry.key))
            raise DecodeFailed(
                f"failed to decode {informer.resource} {where} of {self!r}: {cause_of(error)}"
            ) from error


def _class_of(kind: Kind[ObjectT], *, metadata_only: bool) -> TypedKind[ObjectT] | None:
    typed = typed_of(kind)
    if typed is not None and metadata_only:
        raise ProviderError(f"the metadata alone is no {typed.type.__name__}: ask for {typed.name!r} instead")
    return typed
