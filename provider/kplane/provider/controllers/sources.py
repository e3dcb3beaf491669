"""Sources of requests: objects of clusters, and custom events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Generic, NamedTuple, NoReturn, Protocol, Self, TypeVar, runtime_checkable

from kplane.provider.aio.backoff import Backoff
from kplane.provider.cache.event import Event, Registration
from kplane.provider.client.kinds import parse_kind
from kplane.provider.client.typed import Kind, title_of
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.cluster.context import LOCAL
from kplane.provider.cluster.engagement import Engagement
from kplane.provider.contracts import Provider
from kplane.provider.controllers.handlers import Delayed, Handler, kinds_of, watching
from kplane.provider.controllers.predicates import Predicate
from kplane.provider.errors import ClusterNotReady, ProviderError

__all__ = [
    "Add",
    "Channel",
    "ClusterSource",
    "Engage",
    "KindSource",
    "Poll",
    "Projected",
    "Projection",
    "RawSource",
    "SyncingClusterSource",
    "SyncingSource",
]

log: Final = logging.getLogger(__name__)

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
R_contra = TypeVar("R_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Engage:
    """Chooses the clusters that a source watches. None leaves the choice to the controller, then to the defaults.

    `local` selects the local cluster; the default is to watch it if the manager has no provider. `provider` selects the
    clusters of the provider; the default is to watch them if there is a provider. `filter` and `from_provider` narrow
    the selection: `filter` is called once for each kind and engagement. Neither excludes the local cluster, although
    `filter` is called for the local cluster too.
    """

    local: bool | None = None
    provider: bool | None = None
    filter: Callable[[str, Cluster], bool] | None = None
    from_provider: Provider | None = None

    def over(self, other: Engage) -> Engage:
        """Return these choices, completed by the `other` ones."""
        choices = ((choice.name, getattr(self, choice.name)) for choice in fields(self))
        return Engage(**{name: value if value is not None else getattr(other, name) for name, value in choices})

    def require(self, *, has_local: bool, has_provider: bool) -> None:
        """Raise ProviderError if a manager with these clusters has none of the chosen clusters."""
        if self.local and not has_local:
            raise ProviderError("the manager has no local cluster: give Manager its configuration, or leave local out")
        if (self.provider or self.from_provider is not None) and not has_provider:
            raise ProviderError("the manager finds no clusters: give Manager a provider, or leave provider out")
        if not has_local and not has_provider:
            raise ProviderError("the manager has no cluster: give Manager a configuration, a provider, or both")

    def wants(self, cluster: Cluster, *, has_provider: bool) -> bool:
        """Tell whether to watch a cluster."""
        passes = self.filter is None or self.filter(cluster.name, cluster)
        if cluster.name == LOCAL:
            return self.local if self.local is not None else not has_provider
        if self.from_provider is not None and not cluster.came_from(self.from_provider):
            return False
        return passes and (self.provider if self.provider is not None else has_provider)


class Add(Protocol[R_contra]):
    """Callback for the requests of a source, with the signature of `FairQueue.add_after`."""

    def __call__(self, request: R_contra, seconds: float = 0.0, *, low_priority: bool = False) -> object:
        """Add a request that is due in `seconds`."""


class RawSource(Protocol[R_co]):
    """A custom source of requests, which runs with its controller in every replica, for any number of clusters."""

    async def run(self, add: Add[R_co]) -> None:
        """Pass requests to `add` until cancelled. A source that fails is restarted."""


@runtime_checkable
class SyncingSource(RawSource[R_co], Protocol[R_co]):
    """A source that reports when requests for all objects present at its start were added."""

    async def wait_synced(self) -> None:
        """Wait until requests were added for all present objects. Raises ClusterNotReady if the source cannot sync."""


@runtime_checkable
class ClusterSource(Protocol[R_co]):
    """Makes a source for each cluster; upstream's TypedSource with ForCluster.

    The source of a cluster runs while the controller works on the cluster.
    """

    def for_cluster(self, cluster: Cluster) -> RawSource[R_co] | None:
        """Return the source of a cluster; None if the cluster has none. A failure is retried."""


@runtime_checkable
class SyncingClusterSource(ClusterSource[R_co], Protocol[R_co]):
    """Makes a source for each cluster that reports when it has synced; upstream's TypedSyncingSource."""

    def syncing_for_cluster(self, cluster: Cluster) -> SyncingSource[R_co] | None:
        """Return the source of a cluster, as `for_cluster`."""


class Projected(NamedTuple):
    """The kind to watch in a cluster, and whether to watch only its metadata."""

    kind: Kind[Any]
    metadata_only: bool = False


Projection = Callable[[Cluster, Projected], Projected]
"""Function that chooses by cluster the version of a kind to watch, or to watch only its metadata."""


@dataclass(frozen=True, slots=True)
class KindSource(Generic[R_co]):
    """Watches all objects of a kind: an event that passes every predicate becomes the requests of `handler`.

    With `metadata_only`, objects have only apiVersion, kind and metadata. All sources of a cluster share its informers.
    A custom kind may be a name, such as `"example.com/v1/Widget"`, or its class: `discover` asks each cluster for the
    resource of the kind. `project` chooses by cluster how the kind is watched. Raises ProviderError for an invalid name
    of a kind.
    """

    kind: Kind[Any]
    handler: Handler[R_co]
    predicates: tuple[Predicate, ...] = ()
    metadata_only: bool = False
    engage: Engage = field(default_factory=Engage)
    project: Projection | None = None

    def __post_init__(self) -> None:
        _ = parse_kind(self.kind)

    def discovered(self, cluster: Cluster) -> bool:
        """Tell whether the kinds of the source are discovered in a cluster, so that the source can start."""
        return all(cluster.client.known_resource(kind) is not None for kind in self._kinds(cluster))

    async def discover(self, cluster: Cluster) -> None:
        """Discover the kinds of the source in a cluster. Raises NotServed, and as `Client.resource`."""
        for kind in self._kinds(cluster):
            await cluster.client.resource(kind)

    def start(self, engagement: Engagement, add: Add[R_co]) -> Registration:
        """Start to watch a cluster, and return at once; present objects come first, with low priority.

        Raises ProviderError before the kinds are `discovered` in the cluster.
        """
        requests_of = self._handler_in(engagement.cluster)

        def observe(event: Event) -> None:
            # Read the cluster at each event: a renewal of credentials replaces the cluster.
            for request in requests_of(engagement.cluster, event):
                if isinstance(request, Delayed):
                    add(request.request, request.seconds, low_priority=event.initial)
                else:
                    add(request, low_priority=event.initial)

        return self._watch(engagement.cluster, observe)

    def with_projection(self, project: Projection) -> Self:
        """Return a copy of this source with another `project`; upstream's WithProjection."""
        return replace(self, project=project)

    def for_cluster(self, cluster: Cluster) -> SyncingSource[R_co] | None:
        """Return a source of a single cluster, for code without an engagement; None if `engage` excludes the cluster.

        Without a choice in `engage`, every cluster is included.
        """
        if not self.engage.wants(cluster, has_provider=cluster.name != LOCAL):
            return None
        return _KindInCluster(self, cluster)

    def syncing_for_cluster(self, cluster: Cluster) -> SyncingSource[R_co] | None:
        """Return the same as `for_cluster`; upstream's SyncingForCluster."""
        return self.for_cluster(cluster)

    def _handler_in(self, cluster: Cluster) -> Handler[R_co]:
        """Return the handler of events that pass every predicate, for the kind as it is watched in a cluster."""
        kind, metadata_only = self._projected(cluster)
        predicates, handler = self.predicates, self.handler
        if isinstance(kind, type) and not metadata_only:
            handler = watching(handler, kind)

        def requests_of(cluster: Cluster, event: Event) -> Iterable[R_co | Delayed[R_co]]:
            for matters in predicates:
                if not matters(event):
                    return ()
            return handler(cluster, event)

        return requests_of

    def _watch(self, cluster: Cluster, observe: Callable[[Event], None]) -> Registration:
        kind, metadata_only = self._projected(cluster)
        resource = cluster.client.known_resource(kind)
        if resource is None:
            raise ProviderError(f"how {cluster!r} serves {parse_kind(kind)} is not known: await discover() before")
        return cluster.cache.informer(resource, metadata_only=metadata_only).add_handler(observe)

    def _projected(self, cluster: Cluster) -> Projected:
        given = Projected(self.kind, self.metadata_only)
        return self.project(cluster, given) if self.project is not None else given

    def _kinds(self, cluster: Cluster) -> tuple[Kind[Any], ...]:
        return (self._projected(cluster).kind, *kinds_of(self.handler))


class _KindInCluster(Generic[R_co]):
    """Watches a kind in one cluster."""

    def __init__(self, source: KindSource[R_co], cluster: Cluster) -> None:
        self._source = source
        self._cluster = cluster
        self._registration: Registration | None = None
        self._started = asyncio.Event()

    async def run(self, add: Callable[[R_co], object]) -> NoReturn:
        """Pass requests to `add` until cancelled; a delayed request when its earliest delay has passed."""
        loop, due = asyncio.get_running_loop(), dict[R_co, asyncio.TimerHandle]()

        def add_due(delayed: Delayed[R_co]) -> None:
            del due[delayed.request]
            add(delayed.request)

        def delay(delayed: Delayed[R_co]) -> None:
            timer, at = due.get(delayed.request), loop.time() + delayed.seconds
            if timer is not None and timer.when() <= at:
                return
            if timer is not None:
                timer.cancel()
            due[delayed.request] = loop.call_at(at, add_due, delayed)

        requests_of = self._source._handler_in(self._cluster)  # noqa: SLF001 - part of KindSource

        def observe(event: Event) -> None:
            for request in requests_of(self._cluster, event):
                if isinstance(request, Delayed):
                    delay(request)
                else:
                    add(request)

        await self._source.discover(self._cluster)
        registration = self._registration = self._source._watch(self._cluster, observe)  # noqa: SLF001
        self._started.set()
        try:
            await loop.create_future()
        finally:
            registration.remove()
            for timer in due.values():
                timer.cancel()
        raise AssertionError

    async def wait_synced(self, *, timeout_seconds: float = 30.0) -> None:
        """Wait until all present objects were observed. Raises ClusterNotReady after `timeout_seconds`."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._started.wait()
                if self._registration is not None:
                    await self._registration.synced.wait()
        except TimeoutError:
            raise ClusterNotReady(
                f"the {title_of(self._source.kind)} objects of {self._cluster!r} are not known after"
                f" {timeout_seconds:g} s"
            ) from None


class Channel(Generic[R]):
    """Takes requests from the program itself. Each controller that watches it gets those put in while it runs.

    Requests that are put in before the first controller runs wait for it; equal requests are one, with the shortest
    delay.
    """

    def __init__(self) -> None:
        self._receivers: list[Add[R]] = []
        self._early: dict[R, float] = {}

    @property
    def waiting(self) -> Mapping[R, float]:
        """The requests that wait for the first controller, and the delay in seconds of each."""
        return self._early

    def put(self, request: R, seconds: float = 0.0) -> None:
        """Add a request that is due in `seconds`; call it in the event loop."""
        if not self._receivers:
            self._early[request] = min(seconds, self._early.get(request, seconds))
        for add in self._receivers:
            add(request, seconds)

    async def run(self, add: Add[R]) -> NoReturn:
        """Pass requests on until cancelled."""
        early, self._early = self._early, {}
        for request, seconds in early.items():
            add(request, seconds)
        self._receivers.append(add)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._receivers.remove(add)
        raise AssertionError


class Poll(Generic[R]):
    """Adds the requests that `ask` returns, every `every_seconds`, for resources without a watch or as a clock.

    `every_seconds` is also the timeout of `ask`. A failure is logged, and retried with growing delays.
    """

    def __init__(self, ask: Callable[[], Awaitable[Iterable[R]]], *, every_seconds: float) -> None:
        if every_seconds <= 0:
            raise ProviderError(f"a source cannot be asked each {every_seconds:g} s: give a time above 0")
        self._ask = ask
        self._every_seconds = every_seconds

    async def run(self, add: Add[R]) -> NoReturn:
        """Poll until cancelled, at once the first time."""
        backoff = Backoff(initial_seconds=min(1.0, self._every_seconds), maximum_seconds=self._every_seconds)
        while True:
            try:
                async with asyncio.timeout(self._every_seconds):
                    requests = await self._ask()
            except Exception as error:  # noqa: BLE001 - logged, and retried
                delay = backoff.next_delay()
                log.warning("failed to poll a source: %r; retrying in %.1f s", error, delay)
            else:
                backoff.reset()
                delay = self._every_seconds
                for request in requests:
                    add(request)
            await asyncio.sleep(delay)
