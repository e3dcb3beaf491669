"""A cluster of a fleet, as its provider describes it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, Protocol, Self

from typing_extensions import override

from kplane.provider.access.call_limits import CallLimits
from kplane.provider.access.config import ClusterConfig
from kplane.provider.cache.cache import Cache
from kplane.provider.cache.feed import FeedState, Refusal
from kplane.provider.cache.informer import Transform
from kplane.provider.cache.scope import CacheScope, require_kinds, scope_of
from kplane.provider.cache.server_state import ServerState
from kplane.provider.client.client import Client
from kplane.provider.client.connections import Connections
from kplane.provider.client.limits import AnswerLimits
from kplane.provider.client.resources import Resource
from kplane.provider.client.rest import FieldValidation
from kplane.provider.client.server_warnings import WarningHandler
from kplane.provider.cluster.context import LOCAL
from kplane.provider.cluster.recorder import EventRecorder
from kplane.provider.errors import ClusterNotFound

__all__ = ["CacheScopes", "CallsOf", "Cluster", "Health", "Origin", "Wiring"]

HealthState = Literal["Ready", "Connecting", "Unreachable", "Gone"]

_HEALTH: Final[Mapping[FeedState, HealthState]] = {
    "ready": "Ready",
    "connecting": "Connecting",
    "unreachable": "Unreachable",
}


class Origin(Protocol):
    """The provider that found a cluster."""

    @property
    def name(self) -> str:
        """Name of the provider, for logs and metrics."""
        ...


class Health(NamedTuple):
    """Tells whether the cached objects of a cluster are up to date, and the reason if they are not.

    A cluster without informers is `Ready`, and `Connecting` until the first lists are complete. `kinds` are the refused
    kinds, such as `example.com/v1/Widget`: the cluster does not serve them, or does not let them be read. Refusals do
    not affect the state: a missing CustomResourceDefinition does not make a cluster unreachable.
    """

    state: HealthState
    message: str = ""
    kinds: Mapping[str, Refusal] = MappingProxyType({})


CacheScopes = Mapping[str, CacheScope] | Callable[["Cluster", Resource], CacheScope | None]
"""Scopes of the caches: by name of the kind (`"*"` stands for all others), or by a function of cluster and kind."""


CallsOf = Callable[["Cluster"], CallLimits | None]
"""Returns timeouts and limits of the calls to a cluster; None keeps the defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """Configures client and cache of a cluster.

    Clients share `connections`, bound a call by `timeout_seconds` and answers by `limits`: set these if you do not
    trust the clusters. `calls` overrides both for a cluster, and `ClusterConfig.calls` overrides `calls`. Clients write
    as `field_manager`, name themselves `user_agent`, and ask for `field_validation`; `on_warning` gets the warnings of
    API servers. `transform` changes objects before they are cached, and `cache_scopes` select them. If a function
    returns None for a scope, the cache keeps all objects. `before_write` is called with the name of the cluster before
    each write. An exception prevents the write, and a returned number is its deadline in seconds. With
    `local_keeps_worker`, reconciles that wait for the local cluster keep their workers (see `Client`). Caches list all
    objects again every `relist_seconds`. Raises ProviderError for a scope
    whose key is no kind.
    """

    connections: Connections | None = None
    before_write: Callable[[str], float | None] | None = None
    transform: Transform | None = None
    cache_scopes: CacheScopes | None = None
    limits: AnswerLimits = AnswerLimits()  # noqa: RUF009 - frozen
    field_manager: str | None = None
    user_agent: str | None = None
    field_validation: FieldValidation = "Warn"
    on_warning: WarningHandler | None = None
    timeout_seconds: float = 30.0
    local_keeps_worker: bool = False
    relist_seconds: float = 3600.0
    calls: CallsOf | None = None

    def __post_init__(self) -> None:
        if isinstance(self.cache_scopes, Mapping):
            require_kinds(self.cache_scopes)


class _Live:
    """State that all descriptions of a cluster share: client, cache and recorders."""

    def __init__(self, name: str, config: ClusterConfig) -> None:
        self.name = name
        """Name of the cluster in the fleet."""
        self.config = config
        """Latest configuration, which older descriptions use as well."""
        self.wiring = Wiring()
        self.server_state: Final = ServerState()
        self.client: Client | None = None
        self.cache: Cache | None = None
        self.recorders: dict[str, EventRecorder] = {}
        self.refused_sources: dict[object, tuple[str, Refusal]] = {}
        """Kinds that sources wait for, and that the cluster refused at their discovery, by source."""
        self.ended = False

    def before_write(self) -> float | None:
        """Call the current `before_write`, because the client may be older than the wiring."""
        before_write = self.wiring.before_write
        return before_write(self.name) if before_write is not None else None


class Cluster:
    """Describes a cluster. Renewed credentials make a new description with the same client and cache.

    `credentials` is raw data that came with the cluster, such as the data of a Secret; no repr shows it. `attributes`
    configure consumers; a change of an attribute makes it another cluster.
    """

    def __init__(
        self,
        name: str,
        *,
        config: ClusterConfig,
        credentials: Mapping[str, bytes] | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self.config: Final = config
        self.credentials: Final[Mapping[str, bytes]] = dict(credentials or {})
        self.attributes: Final[Mapping[str, str]] = dict(attributes or {})
        self._origins: tuple[Origin, ...] = ()
        self._live = _Live(name, config)

    @override
    def __repr__(self) -> str:
        return f"Cluster({self.name!r}, server={self.config.server!r}, attributes={self.attributes!r})"

    @property
    def name(self) -> str:
        """Name in the fleet."""
        return self._name

    @property
    def client(self) -> Client:
        """The client of this cluster, made on first use. Raises ClusterNotFound after the engagement."""
        self._require_live()
        if self._live.client is None:
            self._live.client = self.make_client()
        return self._live.client

    def make_client(self) -> Client:
        """Make the client. Subclasses override this method for a client of their own."""
        wiring, calls = self._live.wiring, self.calls()
        return Client(
            self._live.config,
            timeout_seconds=calls.timeout_seconds or wiring.timeout_seconds,
            connect_timeout_seconds=calls.connect_timeout_seconds,
            connections=wiring.connections,
            before_write=self._live.before_write,
            limits=wiring.limits.within(calls),
            field_manager=wiring.field_manager,
            user_agent=wiring.user_agent,
            field_validation=wiring.field_validation,
            cluster=self._live.name,
            on_warning=wiring.on_warning,
            keeps_worker=wiring.local_keeps_worker and self._live.name == LOCAL,
        )

    @property
    def cache(self) -> Cache:
        """The cache of this cluster, made on first use. Raises ClusterNotFound after the engagement."""
        self._require_live()
        if self._live.cache is None:
            self._live.cache = self.make_cache()
        return self._live.cache

    @property
    def known_cache(self) -> Cache | None:
        """The cache, if it is in use."""
        return self._live.cache

    @property
    def server_state(self) -> ServerState:
        """Whether the API server can be reached, as the feeds of the cache observe it."""
        return self._live.server_state

    def make_cache(self) -> Cache:
        """Make the cache. Subclasses override this method for a cache of their own."""
        return Cache(
            self.client,
            name=self.name,
            transform=self._live.wiring.transform,
            scope_of=self.cache_scope,
            server=self.server_state,
            relist_seconds=self._live.wiring.relist_seconds,
        )

    def calls(self) -> CallLimits:
        """Return the timeouts and limits of calls to this cluster: of its configuration, then of the manager."""
        calls, of_manager = self._live.config.calls, self._live.wiring.calls
        default = of_manager(self) if of_manager is not None else None
        return calls.over(default) if default is not None else calls

    def cache_scope(self, resource: Resource) -> CacheScope:
        """Return the scope of a kind in the cache of this cluster."""
        scopes = self._live.wiring.cache_scopes
        if isinstance(scopes, Mapping):
            return scope_of(resource, scopes)
        scope = scopes(self, resource) if scopes is not None else None
        return scope if scope is not None else CacheScope()

    def recorder(self, component: str) -> EventRecorder:
        """Return a component's recorder of Events in this cluster. Raises ClusterNotFound after the engagement."""
        self._require_live()
        recorder = self._live.recorders.get(component)
        if recorder is None:
            recorder = self._live.recorders[component] = EventRecorder(lambda: self.client, component=component)
        return recorder

    @property
    def health(self) -> Health:
        """Whether the cached objects of this cluster are up to date."""
        cache = self._live.cache
        if self._live.ended:
            return Health("Gone")
        kinds = dict(self._live.refused_sources.values())
        if cache is None:
            return Health("Ready", kinds=kinds)
        return Health(_HEALTH[cache.state], cache.error, {**kinds, **cache.refusals})

    def note_refusal(self, source: object, kind: str, refusal: Refusal | None) -> None:
        """Add the kind that a source waits for to the refused kinds of `health`; None ends the wait of the source.

        A kind that was never discovered has no informer that could tell.
        """
        if refusal is None:
            self._live.refused_sources.pop(source, None)
        else:
            self._live.refused_sources[source] = kind, refusal

    def wire(self, wiring: Wiring) -> None:
        """Configure client and cache before their first use; `before_write` takes effect at once."""
        self._live.name = self.name
        self._live.wiring = wiring
        self._live.ended = False

    @property
    def provider_name(self) -> str:
        """Name of the provider that found the cluster, for metrics; empty for the local cluster."""
        return self._origins[0].name if self._origins else ""

    def came_from(self, provider: Origin) -> bool:
        """Tell whether this provider found the cluster, directly or as part of another provider."""
        return any(origin is provider for origin in self._origins)

    def note_origin(self, provider: Origin) -> None:
        """Add a provider that found this cluster."""
        if not self.came_from(provider):
            self._origins = (*self._origins, provider)

    def renamed(self, name: str) -> Self:
        """Return the same cluster, with the same client and cache, under another name."""
        renamed = copy.copy(self)
        renamed._name = name  # noqa: SLF001 - a copy of our own
        return renamed

    def with_config(self, config: ClusterConfig) -> Self:
        """Return the same description with another configuration, and with a client and cache of its own."""
        changed = copy.copy(self)
        object.__setattr__(changed, "config", config)
        changed._live = _Live(self._name, config)  # noqa: SLF001 - a copy of our own
        return changed

    def continues(self, previous: Cluster) -> bool:
        """Tell whether this is the cluster of `previous`, except for renewed credentials or a renewed CA."""
        return self.attributes == previous.attributes and self.config.continues(previous.config)

    def equals(self, other: Cluster) -> bool:
        """Tell whether both descriptions are equal, including credentials."""
        return (self.name, self.config, self.credentials, self.attributes) == (
            other.name,
            other.config,
            other.credentials,
            other.attributes,
        )

    async def take_over(self, previous: Cluster) -> None:
        """Use the client and cache of the previous description, with the credentials of this one."""
        self._live = previous._live
        self._live.config = self.config
        if self._live.client is not None:
            await self._live.client.update(self.config)

    async def pause_reading(self) -> None:
        """Pause the cache; see `Cache.pause`."""
        if self._live.cache is not None:
            await self._live.cache.pause()

    def resume_reading(self) -> None:
        """Resume the cache; its handlers get all existing objects, and every change."""
        if self._live.cache is not None:
            self._live.cache.resume()

    async def aclose(self) -> None:
        """Close recorders, cache and client."""
        self._live.ended = True
        recorders, self._live.recorders = self._live.recorders, {}
        for recorder in recorders.values():
            await recorder.aclose()
        cache, self._live.cache = self._live.cache, None
        if cache is not None:
            await cache.aclose()
        client, self._live.client = self._live.client, None
        if client is not None:
            await client.aclose()

    def _require_live(self) -> None:
        if self._live.ended:
            raise ClusterNotFound(f"cluster {self.name!r} is gone", cluster=self.name)
