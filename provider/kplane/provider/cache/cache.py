"""The objects of one cluster, mirrored kind by kind on demand."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar, cast, overload

from typing_extensions import override

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
T = TypeVar("T")
Listed = list[T]
Decoder = Callable[[bytes], T]
"""Reads the JSON of an object, such as `msgspec.json.Decoder(Widget).decode` or `Widget.model_validate_json`."""


class InformerKey(NamedTuple):
    """What users of one informer have in common."""

    resource: Resource
    metadata_only: bool
    scope: CacheScope


class Cache:
    """Mirrors each kind that is asked for by one informer, which all users share.

    An informer starts with the first read of its kind, and runs until `remove`, `pause` or `aclose`. `get` and `list`
    wait at most `sync_timeout_seconds` until the informer has all objects, then raise ClusterNotReady. They raise
    NotServed or Forbidden as soon as the cluster says that it does not serve the kind, or does not let it be read.
    Objects that were read before stay readable.

    Writes through the client are in the cache when they return, so that the next read sees them. Informers of a scope
    with a field selector wait for the watch, as do `delete_all` and `request` of the client.

    `scope_of` narrows a kind down; reads outside of its `CacheScope` raise ProviderError. `transform` changes each
    object once before it is kept; its identity must stay. `name` is the cluster's, for logs and task names. `server`
    learns whether its API server can be reached. The client belongs to the caller.
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
    ) -> None:
        self._client = client
        self._name = name
        self._transform = transform
        self._scope_of = scope_of
        self._sync_timeout_seconds = sync_timeout_seconds
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
        """The worst state of what its informers follow; ready if there is none. Refused kinds do not count."""
        states = {state for informer in self._informers.values() for state in informer.feed_states}
        return next((state for state in _STATES if state in states), "ready")

    @property
    def error(self) -> str:
        """Why an informer cannot reach the server; empty if all can."""
        feeds = (feed for informer in self._informers.values() for feed in informer.feeds)
        return next((feed.error for feed in feeds if feed.state == "unreachable"), "")

    @property
    def refusals(self) -> Mapping[str, Refusal]:
        """Kinds that the server does not serve, or does not let be read, by their names."""
        found = ((str(parse_kind(key.resource)), informer.refusal) for key, informer in self._informers.items())
        return {kind: refusal for kind, refusal in found if refusal is not None}

    @property
    def restarts(self) -> Mapping[str, int]:
        """Number of watches that ended, by reason: closed, expired, refused, unreachable, failed."""
        return sum((Counter(informer.restarts) for informer in self._informers.values()), self._ended_restarts)

    def size_bytes(self) -> Mapping[str, int]:
        """Return the bytes of the objects by kind."""
        sizes: Counter[str] = Counter()
        for key, informer in self._informers.items():
            sizes[key.resource.kind] += informer.size_bytes
        return sizes

    def informer(self, kind: Kind[Any], *, metadata_only: bool = False, scope: CacheScope | None = None) -> Informer:
        """Return the informer of a kind; it starts now if it is new or paused.

        With `metadata_only` it is another informer, which keeps apiVersion, kind and metadata; with a `scope` it is one
        of that scope instead of the cache's own, for example of a single object. Informers with equal arguments are
        one. Raises ProviderError if the cache is closed, and for a name of a kind that is not Kubernetes' own: await
        `client.resource(name)` before.
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
        """Index a field of a kind by the values of `extract`, before or after objects are there.

        `extract` gets an object: of a class an instance. One that cannot be decoded is logged, and not found by the
        field.

        The same function may be added twice; another one for the same field raises ProviderError. Present objects are
        decoded at once: with very many, index before the first read.
        """
        name = parse_kind(kind)
        plain = extract_of(kind, extract)
        known = self._indexes.setdefault((name, metadata_only), {}).setdefault(field, plain)
        require_same(known, plain, kind=name, field=field)
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
        """Return a copy of an object as last seen, or what `decoder` makes of its JSON.

        If `kind` is a class that `typed_kind` has declared, the object is an instance, which is decoded once for each
        version and shared by all readers: do not change it.

        `key` is a name, with `namespace` for namespaced kinds, or an object with both, such as a `Request`. `kind` may
        be the name of any kind; see `Client.resource`. `decoder` is for example `msgspec.json.Decoder(Widget).decode`.

        Raises NotFound; ClusterNotReady before all objects are known; NotServed and Forbidden (see the class);
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
        """Return copies of the objects of a kind as last seen, or what the class or `decoder` makes of each.

        `namespace=None` means all namespaces of the scope, without those that were added to it and are not read yet;
        `list` of such a namespace waits until it is read. `field` are values of indexed fields, all of which must
        match. Raises as `get`, except NotFound, and ProviderError for a field without index or an invalid selector.
        """
        typed = _class_of(kind, metadata_only=metadata_only)
        resource = await self._client.resource(kind)
        informer = await self._synced(resource, metadata_only=metadata_only, namespace=namespace)
        entries = informer.entries(namespace=namespace, label_selector=label_selector, field=field)
        return cast("Listed[ObjectT]", [self._decoded(informer, entry, typed, decoder) for entry in entries])

    def observe(self, written: Written) -> None:
        """Take in what a write made of an object; see `Informer.observe`. The client calls it."""
        for informer in self._informers.values():
            informer.observe(written)

    async def remove(self, kind: Kind[Any]) -> None:
        """End all informers of a kind, and return when their watches have ended and their objects are forgotten.

        Handlers of these informers are not called again, also those of controllers that watch the kind. The next read
        of the kind starts an informer anew. A kind without informers is no error.
        """
        name = parse_kind(kind)
        ended = {key: each for key, each in self._informers.items() if parse_kind(key.resource) == name}
        self._informers = {key: each for key, each in self._informers.items() if key not in ended}
        await asyncio.gather(*map(self._end, ended.values()))

    async def pause(self) -> None:
        """Stop to mirror, and forget all objects; the next read starts anew.

        Informers with handlers stay, and their handlers with them: `resume`, or the next read of their kind, starts
        them again, and gives the handlers the objects that are there then.
        """
        informers, self._informers = self._informers, {}
        for key, informer in informers.items():
            if informer.has_handlers:
                self._informers[key] = informer
        await asyncio.gather(*(each.stop() if each.has_handlers else self._end(each) for each in informers.values()))

    def resume(self) -> None:
        """Start the informers again that `pause` left with handlers."""
        for informer in self._informers.values():
            informer.start()

    async def aclose(self) -> None:
        """End all informers with their handlers for good."""
        self._closed = True
        self._client.ignore_writes(self.observe)
        informers, self._informers = self._informers, {}
        await asyncio.gather(*map(self._end, informers.values()))

    async def _end(self, informer: Informer) -> None:
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
            # Before it waits for objects that could not be among them.
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
