"""Review of the objects of the local cluster, for clusters that this process begins to work on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Sequence
from typing import Final, Generic, NoReturn, TypeVar

from kplane.provider.aio.backoff import Backoff
from kplane.provider.cache.event import Registration
from kplane.provider.cluster.engagement import Engagement
from kplane.provider.controllers.rate_limiter import Clustered
from kplane.provider.controllers.sources import Add, KindSource

__all__ = ["Review"]

log: Final = logging.getLogger(__name__)

R = TypeVar("R", bound=Clustered)


class Review(Generic[R]):
    """Passes present objects of the local cluster through a controller's sources again, for some clusters only.

    Events of the local cluster may lead to requests for any cluster. Requests from before this process worked on a
    cluster were dropped, or went to another process, which may have died before their reconcile. Clusters that are
    requested during a review share the next review.
    """

    def __init__(
        self,
        name: str,
        engagement: Engagement,
        *,
        sources: Sequence[KindSource[R]],
        add: Add[R],
    ) -> None:
        """Call `add` with requests of the sources in `sources` at the time of a review; `name` is the controller's."""
        self._name = name
        self._engagement = engagement
        self._sources = sources
        self._add = add
        self._clusters: set[str] = set()
        self._bell = asyncio.Event()

    def ask(self, cluster: str) -> None:
        """Request a review of the objects for a cluster."""
        self._clusters.add(cluster)
        self._bell.set()

    async def run(self) -> NoReturn:
        """Review until cancelled. A failure is logged, and retried with growing delays."""
        backoff = Backoff(initial_seconds=0.5, maximum_seconds=60.0)
        while True:
            await self._bell.wait()
            self._bell.clear()
            clusters, self._clusters = self._clusters, set()
            try:
                await self._review(clusters)
            except Exception:
                log.exception("%s: failed to review the local cluster; retrying", self._name)
                for cluster in clusters:
                    self.ask(cluster)
                await asyncio.sleep(backoff.next_delay())
            else:
                backoff.reset()

    async def _review(self, clusters: Collection[str]) -> None:
        def add(request: R, seconds: float = 0.0, *, low_priority: bool = False) -> None:
            if request.cluster in clusters:
                self._add(request, seconds, low_priority=low_priority)

        with contextlib.ExitStack() as stack:
            registrations: list[Registration] = []
            for source in tuple(self._sources):
                # The informer passes all present objects to a new handler, in slices.
                registration = source.start(self._engagement, add)
                stack.callback(registration.remove)
                registrations.append(registration)
            for registration in registrations:
                await registration.synced.wait()
