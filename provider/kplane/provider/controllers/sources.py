"""Sources of requests: objects of clusters, and whatever else a controller listens to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Final, Generic, NoReturn, Protocol, TypeVar

from kplane.provider.aio.backoff import Backoff
from kplane.provider.cache.event import Event, Registration
from kplane.provider.client.kinds import parse_kind
from kplane.provider.client.resources import Resource
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.cluster.context import LOCAL
from kplane.provider.cluster.engagement import Engagement
from kplane.provider.contracts import Provider
from kplane.provider.controllers.handlers import Delayed, Handler, kinds_of
from kplane.provider.controllers.predicates import Predicate
from kplane.provider.errors import ProviderError

__all__ = ["Add", "Channel", "Engage", "KindSource", "Poll", "RawSource"]

log: Final = logging.getLogger(__name__)

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
R_contra = TypeVar("R_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Engage:
    """Chooses the clusters that a source watches. None leaves the choice to the controller, then to the defaults.

    `local` is the local cluster; by default it is watched if the manager has no provider. `provider` is the provider's
    clusters, watched by default if there is a provider. `filter` and `from_provider` narrow these down: `filter` is
    called once for each kind and engagement. Neither excludes the local cluster, though `filter` is called for it too.
    """

    local: bool | None = None
    provider: bool | None = None
    filter: Callable[[str, Cluster], bool] | None = None
    from_provider: Provider | None = None

    def over(self, other: Engage) -> Engage:
        """Return these choices, completed by the `other` ones."""
        mine = ((each.name, getattr(self, each.name)) for each in fields(self))
        return Engage(**{name: value if value is not None else getattr(other, name) for name, value in mine})

    def require(self, *, has_local: bool, has_provider: bool) -> None:
        """Raise ProviderError if a manager with these clusters has none of those that are chosen."""
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
    """Takes the requests of a source, as `FairQueue.add_after`."""

    def __call__(self, request: R_contra, seconds: float = 0.0, *, low_priority: bool = False) -> object:
        """Take a request that is due in `seconds`."""


@dataclass(frozen=True, slots=True)
class KindSource(Generic[R_co]):
    """Watches all objects of a kind: an event that passes every predicate becomes the requests of `handler`.

    With `metadata_only`, objects have only apiVersion, kind and metadata. All sources of a cluster share its informers.
    A kind that is not Kubernetes' own may be a name, such as `"example.com/v1/Widget"`: each cluster is asked how it
    serves it, by `discover`. Raises ProviderError for what is no name of a kind.
    """

    kind: Resource | str
    handler: Handler[R_co]
    predicates: tuple[Predicate, ...] = ()
    metadata_only: bool = False
    engage: Engage = field(default_factory=Engage)

    def __post_init__(self) -> None:
        _ = parse_kind(self.kind)

    def discovered(self, cluster: Cluster) -> bool:
        """Tell whether the kinds of the source are known in a cluster, so that it can start."""
        return all(cluster.client.known_resource(kind) is not None for kind in self._kinds)

    async def discover(self, cluster: Cluster) -> None:
        """Ask a cluster for the kinds that are not known there. Raises NotServed, and as `Client.resource`."""
        for kind in self._kinds:
            await cluster.client.resource(kind)

    def start(self, engagement: Engagement, add: Add[R_co]) -> Registration:
        """Start to watch a cluster, and return at once; the objects that are there come first, with low priority.

        Raises ProviderError before its kinds are `discovered` there.
        """
        handler, predicates = self.handler, self.predicates

        def see(event: Event) -> None:
            for matters in predicates:
                if not matters(event):
                    return
            for request in handler(engagement.cluster, event):
                if isinstance(request, Delayed):
                    add(request.request, request.seconds, low_priority=event.initial)
                else:
                    add(request, low_priority=event.initial)

        cluster = engagement.cluster
        resource = cluster.client.known_resource(self.kind)
        if resource is None:
            raise ProviderError(f"how {cluster!r} serves {self.kind} is not known: await discover() before")
        informer = cluster.cache.informer(resource, metadata_only=self.metadata_only)
        return informer.add_handler(see)

    @property
    def _kinds(self) -> tuple[Resource | str, ...]:
        return (self.kind, *kinds_of(self.handler))


class RawSource(Protocol[R_co]):
    """Adds requests from elsewhere. It runs with its controller in every replica, whatever clusters there are."""

    async def run(self, add: Callable[[R_co], object]) -> None:
        """Pass requests to `add` until cancelled. If it fails, it is restarted."""


class Channel(Generic[R]):
    """Takes requests from the program itself. Each controller that watches it gets those put in while it runs.

    Requests that are put in before the first controller runs wait for it; equal requests are one.
    """

    def __init__(self) -> None:
        self._receivers: list[Callable[[R], object]] = []
        self._early: dict[R, None] = {}

    def put(self, request: R) -> None:
        """Add a request; call it in the event loop."""
        if not self._receivers:
            self._early[request] = None
        for add in self._receivers:
            add(request)

    async def run(self, add: Callable[[R], object]) -> NoReturn:
        """Pass requests on until cancelled."""
        early, self._early = self._early, {}
        for request in early:
            add(request)
        self._receivers.append(add)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._receivers.remove(add)
        raise AssertionError


class Poll(Generic[R]):
    """Adds the requests that `ask` returns, every `every_seconds`: for what cannot be watched, or as a clock.

    `ask` may take that long. A failure is logged, and retried with growing delays.
    """

    def __init__(self, ask: Callable[[], Awaitable[Iterable[R]]], *, every_seconds: float) -> None:
        if every_seconds <= 0:
            raise ProviderError(f"a source cannot be asked each {every_seconds:g} s: give a time above 0")
        self._ask = ask
        self._every_seconds = every_seconds

    async def run(self, add: Callable[[R], object]) -> NoReturn:
        """Poll until cancelled, at once the first time."""
        backoff = Backoff(initial_seconds=min(1.0, self._every_seconds), maximum_seconds=self._every_seconds)
        while True:
            try:
                async with asyncio.timeout(self._every_seconds):
                    requests = await self._ask()
            except Exception as error:  # noqa: BLE001 - logged, and asked again
                delay = backoff.next_delay()
                log.warning("failed to poll a source: %r; retrying in %.1f s", error, delay)
            else:
                backoff.reset()
                delay = self._every_seconds
                for request in requests:
                    add(request)
            await asyncio.sleep(delay)
