"""Where requests come from: objects of clusters, and whatever else a controller listens to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Final, Generic, NoReturn, Protocol, TypeVar

from kplane.provider.aio.backoff import Backoff
from kplane.provider.cache.event import Event, Registration
from kplane.provider.client.resources import Resource
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.cluster.context import LOCAL
from kplane.provider.cluster.engagement import Engagement
from kplane.provider.contracts import Provider
from kplane.provider.controllers.handlers import Handler
from kplane.provider.controllers.predicates import Predicate
from kplane.provider.errors import ProviderError

__all__ = ["Channel", "Engage", "KindSource", "Poll", "RawSource"]

log: Final = logging.getLogger(__name__)

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Engage:
    """Which clusters a source watches; None leaves it to the controller's own options, and then to the defaults.

    `local`: the local cluster, by default if the manager has no provider. `provider`: those of the provider, by
    default if there is one. Of these only those that `filter` wants, which is called once for each kind and
    engagement, and those that come from `from_provider`; neither keeps the local cluster out (`filter` is called for it
    all the same).
    """

    local: bool | None = None
    provider: bool | None = None
    filter: Callable[[str, Cluster], bool] | None = None
    from_provider: Provider | None = None

    def over(self, other: Engage) -> Engage:
        """These, and if they leave something open, the `other`."""
        mine = ((each.name, getattr(self, each.name)) for each in fields(self))
        return Engage(**{name: value if value is not None else getattr(other, name) for name, value in mine})

    def wants(self, cluster: Cluster, *, has_provider: bool) -> bool:
        """Whether a cluster is to be watched."""
        passes = self.filter is None or self.filter(cluster.name, cluster)
        if cluster.name == LOCAL:
            return self.local if self.local is not None else not has_provider
        if self.from_provider is not None and not cluster.came_from(self.from_provider):
            return False
        return passes and (self.provider if self.provider is not None else has_provider)


@dataclass(frozen=True, slots=True)
class KindSource(Generic[R_co]):
    """All objects of a kind: what happens to one leads to the requests of `handler`, if every predicate agrees.

    With `metadata_only` objects have apiVersion, kind and metadata. All sources of a cluster share its informers.
    """

    resource: Resource
    handler: Handler[R_co]
    predicates: tuple[Predicate, ...] = ()
    metadata_only: bool = False
    engage: Engage = field(default_factory=Engage)

    def start(self, engagement: Engagement, add: Callable[[R_co], object]) -> Registration:
        """Begin to watch a cluster, and return at once; what is there already is given as well."""
        handler, predicates = self.handler, self.predicates

        def see(event: Event) -> None:
            for matters in predicates:
                if not matters(event):
                    return
            for request in handler(engagement.cluster, event):
                add(request)

        informer = engagement.cluster.cache.informer(self.resource, metadata_only=self.metadata_only)
        return informer.add_handler(see)


class RawSource(Protocol[R_co]):
    """Something else that asks for work. It runs with its controller, on every replica, whatever clusters there are."""

    async def run(self, add: Callable[[R_co], object]) -> None:
        """Give requests to `add` until cancelled; it is run again when it fails."""


class Channel(Generic[R]):
    """Requests that the program puts in itself. Each controller that watches it gets those that come while it runs.

    What is put in before the first one runs waits for it; equal requests are one.
    """

    def __init__(self) -> None:
        self._receivers: list[Callable[[R], object]] = []
        self._early: dict[R, None] = {}

    def put(self, request: R) -> None:
        """Ask for work on a request; in the event loop."""
        if not self._receivers:
            self._early[request] = None
        for add in self._receivers:
            add(request)

    async def run(self, add: Callable[[R], object]) -> NoReturn:
        """Hand requests over until cancelled."""
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
    """Requests that `ask` returns, each `every_seconds`: for what cannot be watched, or as a clock.

    `ask` may take as long as that. If it fails, that is logged, and it is asked again with growing delays.
    """

    def __init__(self, ask: Callable[[], Awaitable[Iterable[R]]], *, every_seconds: float) -> None:
        if every_seconds <= 0:
            raise ProviderError(f"a source cannot be asked each {every_seconds:g} s: give a time above 0")
        self._ask = ask
        self._every_seconds = every_seconds

    async def run(self, add: Callable[[R], object]) -> NoReturn:
        """Ask until cancelled, for the first time at once."""
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
