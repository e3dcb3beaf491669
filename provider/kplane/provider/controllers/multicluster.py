"""The controller over all clusters of a fleet."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Generic, NoReturn, TypeVar

from kplane.provider.aio.running import keep_running
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.cluster.context import LOCAL, cluster_context
from kplane.provider.cluster.engagement import Engagement
from kplane.provider.contracts import ControllerHost
from kplane.provider.controllers.awaited import AwaitedClusters
from kplane.provider.controllers.engaged import ClusterWatch, EngagedCluster, name_of
from kplane.provider.controllers.options import Options
from kplane.provider.controllers.queue import FairQueue
from kplane.provider.controllers.rate_limiter import Clustered
from kplane.provider.controllers.reconcile import Reconcile, is_unreached, require_result
from kplane.provider.controllers.request import Request
from kplane.provider.controllers.review import Review
from kplane.provider.controllers.sources import Add, ClusterSource, Engage, KindSource, RawSource
from kplane.provider.controllers.stats import ControllerStats
from kplane.provider.controllers.workers import Controller, Result
from kplane.provider.errors import ClusterNotFound, ClusterNotOwned, ClusterNotReady, ProviderError

__all__ = ["MulticlusterController"]

log: Final = logging.getLogger(__name__)

R = TypeVar("R", bound=Clustered)

_UNDECIDED_SECONDS: Final = 60.0
"""Maximum time a request waits for this process to own the cluster of the request: longer than a takeover."""
_SWEEP_SECONDS: Final = 1.0

Source = ClusterWatch[R] | RawSource[R]
"""A source of requests for a controller."""


class MulticlusterController(Generic[R]):
    """Watches clusters and calls `reconcile` for their events, with a fair and bounded share for each cluster.

    Events of the local cluster may lead to requests for any cluster. Requests for clusters of other processes are
    dropped. When this process begins to work on a cluster, the controller reviews the objects of the local cluster for
    the requests of that cluster.

    `controller()` makes the controller and adds it to a `Manager`, which engages and runs it. The cluster of a request
    is in the context of its reconcile (`current_cluster`) and in its log records.

    A reconcile that asks for a cluster outside the fleet is repeated when that cluster joins. Requests wait while the
    API server of their cluster cannot be reached, and failures from that time do not delay them afterwards.

    A reconcile begins only while this process may work on the cluster. A request for a cluster of the fleet that is not
    engaged waits, and is dropped if this process does not own the cluster within a minute. When the work on a cluster
    ends, its sources stop, its waiting requests are dropped, and running reconciles have `grace_seconds`. The end of
    the engagement awaits these steps.
    """

    def __init__(
        self, name: str, reconcile: Reconcile[R], *, manager: ControllerHost, options: Options[R] | None = None
    ) -> None:
        """The defaults of `options.workers` and `options.timeout_seconds` are the manager's."""
        options = options if options is not None else Options()
        at_once = options.workers if options.workers is not None else manager.workers
        self.name: Final = name
        self.workers: Final = at_once
        self.stats: Final = ControllerStats()
        self.queue: Final[FairQueue[R]] = FairQueue(
            weights=options.weights,
            per_cluster=options.per_cluster if options.per_cluster is not None else at_once,
            rate_limiter=options.rate_limiter,
        )
        self._reconcile = reconcile
        self._options = options
        self._manager = manager
        self._may_work = manager.coordinator.may_work
        self._sources: list[tuple[ClusterWatch[R], Engage]] = []
        self._raw_sources: list[RawSource[R]] = []
        self._engaged: dict[str, EngagedCluster[R]] = {}
        self._hub: EngagedCluster[R] | None = None
        """Sources in the local cluster, whose events map to all clusters."""
        self._review: Review[R] | None = None
        self._awaited: AwaitedClusters[R] = AwaitedClusters(name)
        self._undecided: dict[str, float] = {}
        """Time since which requests wait for each cluster of the fleet that this process does not own."""
        self._running: asyncio.TaskGroup | None = None
        self._controller: Controller[R] = Controller(
            name,
            self._work,
            queue=self.queue,
            workers=at_once,
            waiting=options.waiting,
            timeout_seconds=(
                options.timeout_seconds if options.timeout_seconds is not None else manager.reconcile_timeout_seconds
            ),
            on_failure=self._failed,
            fields=self._fields,
            logger=options.logger,
        )

    @property
    def manager(self) -> ControllerHost:
        """The manager of the controller."""
        return self._manager

    def require_clusters(self, *, has_local: bool, has_provider: bool) -> None:
        """Raise ProviderError if a manager with these clusters has none of the clusters that a source chooses."""
        for source, engage in self._sources:
            try:
                self._choice(engage).require(has_local=has_local, has_provider=has_provider)
            except ProviderError as error:
                raise ProviderError(f"controller {self.name} cannot watch {name_of(source)}: {error}") from None

    @property
    def under_way(self) -> Mapping[str, int]:
        """Number of running reconciles, by cluster."""
        return Counter(request.cluster for request in self._controller.under_way)

    def running_seconds(self) -> list[float]:
        """Return the age in seconds of each running reconcile."""
        return self._controller.running_seconds()

    @property
    def awaiting(self) -> int:
        """Number of requests that wait for another cluster to join."""
        return len(self._awaited)

    @property
    def clusters(self) -> list[str]:
        """Names of the engaged clusters, sorted."""
        return sorted(self._engaged)

    def watch(self, source: Source[R], *, engage: Engage | None = None) -> None:
        """Add a source: a kind, a source for each cluster, or a source such as a `Channel`.

        A source of clusters runs in all clusters, present and future, that `engage` chooses; the default is the
        `engage` of a KindSource. A failure in an engaged cluster is logged, and retried with growing delays. Raises
        ProviderError for an invalid source.
        """
        if isinstance(source, (KindSource, ClusterSource)):
            own = source.engage if isinstance(source, KindSource) else Engage()
            choice = engage if engage is not None else own
            self._sources.append((source, choice))
            watched = [engaged for name, engaged in self._engaged.items() if name != LOCAL]
            for engaged in [*watched, *self._watched_locally()]:
                if not engaged.engagement.closing:
                    engaged.start_soon(source, choice)
        elif callable(getattr(source, "run", None)):
            self._raw_sources.append(source)
            if self._running is not None:
                self._start_raw(source, self._running)
        else:
            raise ProviderError(f"{source!r} is no source: give it a method for_cluster() or run()")

    async def wait_synced(self, cluster: str, *, timeout_seconds: float = 30.0) -> None:
        """Wait until the sources of a cluster have added requests for all present objects.

        Raises ClusterNotReady if the controller does not work on the cluster, stops its work there, or takes longer.
        The error names kinds that the cluster does not serve.
        """
        engaged = self._engaged.get(cluster)
        if cluster == LOCAL and self._hub is not None:
            engaged = self._hub
        if engaged is None:
            raise ClusterNotReady(f"{self.name} does not work on cluster {cluster!r}")
        try:
            async with asyncio.timeout(timeout_seconds):
                await engaged.wait_synced()
        except TimeoutError:
            why = "".join(f"; it {failure}" for failure in engaged.failures)
            raise ClusterNotReady(
                f"{self.name} does not know all objects of cluster {cluster!r} after {timeout_seconds:g} s{why}"
            ) from None

    async def engage(self, engagement: Engagement) -> None:
        """Start to watch a cluster, and return at once; a repeated call has no effect."""
        name = engagement.cluster.name
        while (existing := self._engaged.get(name)) is not None:
            if existing.engagement is engagement and existing.ending is None:
                return
            await self._end(existing)
        engaged = self._engaged_cluster(engagement, add=self.queue.add_after)
        engagement.on_close(lambda: self._end(engaged))
        self._engaged[name] = engaged
        self.stats.by_cluster.setdefault(name, Counter())
        if self._review is not None:
            self._review.ask(name)
        elif name == LOCAL:
            self._watch_hub(engagement)
        if name != LOCAL:
            self._start_all(engaged)
        self.queue.unpark(name)
        self._join(name)
        self._follow_reachability(engaged)

    def _follow_reachability(self, engaged: EngagedCluster[R]) -> None:
        """Suspend the requests of a cluster while its API server cannot be reached, unless an option says otherwise."""
        if not self._options.while_unreachable:
            state = engaged.engagement.cluster.server_state
            engaged.engagement.on_close(state.subscribe(lambda: self._suspend_or_resume(engaged)))
            self._suspend_or_resume(engaged)

    def _suspend_or_resume(self, engaged: EngagedCluster[R]) -> None:
        cluster = engaged.engagement.cluster
        if engaged.ending is not None or engaged.stopped:
            return
        if cluster.server_state.reachable:
            self.queue.resume(cluster.name)
        else:
            self.queue.suspend(cluster.name)

    async def engage_local(self, engagement: Engagement) -> None:
        """Start to work on the local cluster, as `engage` does; a watch by `watch_local` continues."""
        await self.engage(engagement)

    async def watch_local(self, engagement: Engagement) -> None:
        """Watch the local cluster for events that lead to requests for clusters of this process."""
        if self._hub is not None:
            # An engagement for work on the local cluster began this watch, and may end before this engagement.
            self._leave_hub(self._hub)
        self._watch_hub(engagement)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._running = tasks
            try:
                tasks.create_task(self._controller.run(), name=f"{self.name} workers")
                tasks.create_task(self._sweep(), name=f"{self.name} sweep")
                for source in self._raw_sources:
                    self._start_raw(source, tasks)
                await asyncio.get_running_loop().create_future()
            finally:
                self._running = None

    def _watch_hub(self, engagement: Engagement) -> None:
        hub = self._hub = self._engaged_cluster(engagement, add=self._add_mapped)
        engagement.on_close(lambda: self._leave_hub(hub))
        self._start_all(hub)
        # A process that only watches the hub has no requests of it. But the end of the suspension also adds the
        # requests of other clusters that failed because of the hub.
        self._follow_reachability(hub)
        review = self._review = Review(self.name, engagement, sources=hub.kinds, add=self.queue.add_after)
        _ = engagement.spawn(review.run(), name=f"{self.name} reviews the local cluster")

    def _leave_hub(self, hub: EngagedCluster[R]) -> None:
        hub.stop()
        if self._hub is hub:
            self._hub = self._review = None
            if LOCAL not in self._engaged:
                # No feed would end the suspension any more.
                self.queue.resume(LOCAL)

    def _watched_locally(self) -> list[EngagedCluster[R]]:
        return [self._hub] if self._hub is not None else []

    def _add_mapped(self, request: R, seconds: float = 0.0, *, low_priority: bool = False) -> None:
        """Add a request of an event of the local cluster, if this process works on the cluster of the request.

        Each process sees the event and adds the requests of its own clusters. A `Review` covers clusters that this
        process gains later.
        """
        if request.cluster in self._engaged or self._may_work(request.cluster):
            self.queue.add_after(request, seconds, low_priority=low_priority)
        else:
            self.stats.dropped["not_owned"] += 1

    def _start_all(self, engaged: EngagedCluster[R]) -> None:
        for source, engage in self._sources:
            engaged.start(source, engage)

    def _wants(self, engage: Engage, cluster: Cluster) -> bool:
        scope = self._manager.scope
        if scope is not None and cluster.name != scope:
            return False
        return self._choice(engage).wants(cluster, has_provider=self._manager.provider is not None)

    def _choice(self, engage: Engage) -> Engage:
        """Complete the choice of a source by the options of the controller, and by the scope of the manager."""
        scope = self._manager.scope
        default = Engage() if scope is None else Engage(local=scope == LOCAL, provider=scope != LOCAL)
        return engage.over(self._options.engage).over(default)

    def _engaged_cluster(self, engagement: Engagement, *, add: Add[R]) -> EngagedCluster[R]:
        return EngagedCluster(engagement, controller=self.name, add=add, wants=self._wants)

    def _start_raw(self, source: RawSource[R], tasks: asyncio.TaskGroup) -> None:
        name = f"{self.name} {type(source).__name__}"
        tasks.create_task(keep_running(name, lambda: source.run(self.queue.add_after)), name=name)

    async def _end(self, engaged: EngagedCluster[R]) -> None:
        # All callers await the same task, and so the end of all work.
        if engaged.ending is None:
            name = f"{self.name} leaves {engaged.engagement.cluster.name}"
            engaged.ending = asyncio.create_task(self._leave(engaged), name=name)
        await asyncio.shield(engaged.ending)

    async def _leave(self, engaged: EngagedCluster[R]) -> None:
        name = engaged.engagement.cluster.name
        engaged.stop()
        del self._engaged[name]
        self.stats.dropped["gone"] += self.queue.drop(name)
        if name == LOCAL and self._hub is not None:
            # The process may lose the hub because the hub cannot be reached, and then continues to watch the hub.
            self._suspend_or_resume(self._hub)
        self._awaited.drop(name)
        await self._controller.drain(lambda request: request.cluster == name, grace_seconds=self._grace_seconds(name))
        if name not in self._engaged:
            self.stats.by_cluster.pop(name, None)

    def _grace_seconds(self, cluster: str) -> float:
        least = self._manager.coordinator.grace_seconds(cluster)
        return self._options.grace_seconds if least is None else min(self._options.grace_seconds, least)

    async def _work(self, request: R) -> Result | None:
        cluster = request.cluster
        if not self._may_begin(request):
            return None
        began = time.perf_counter()
        missing: str | None = None
        try:
            with cluster_context(cluster):
                result = require_result(await self._reconcile(request))
        except ClusterNotFound as error:
            if self._options.retry_cluster_not_found or (error.cluster is None and self._known(cluster)):
                raise
            missing = error.cluster
            result = self._without(request, missing)
        except ClusterNotReady as error:
            self._options.logger.debug("%s: requeuing %s: %s", self.name, request, error)
            self.queue.note_unreached(request)
            result = Result(requeue=True)
        except ClusterNotOwned:
            if self._may_begin(request):
                raise
            return None
        finally:
            self.stats.durations.note(time.perf_counter() - began)
            if missing is None:
                self._awaited.forget(request)
        self._count(cluster, result)
        return result

    def _without(self, request: R, missing: str | None) -> Result | None:
        """Return the result for a request whose reconciler did not find a cluster; None drops the request."""
        if not self._known(request.cluster):
            self.stats.dropped["not_found"] += 1
            return None
        if missing is None or self._known(missing):
            # The missing cluster has joined meanwhile, or is being replaced.
            return Result(requeue=True)
        return Result(requeue_after_seconds=self._awaited.wait(request, missing))

    def _join(self, cluster: str) -> None:
        """Add the requests that wait for a cluster to the queue now."""
        for request in self._awaited.join(cluster):
            self.queue.hasten(request)

    def _may_begin(self, request: R) -> bool:
        """Tell whether a reconcile may begin; otherwise park or, for an unknown cluster, drop the request."""
        cluster = request.cluster
        engaged = self._engaged.get(cluster)
        if self._may_work(cluster):
            if not (self._known(cluster) if engaged is None else engaged.engagement.closing):
                return True
        elif engaged is None:
            if not self._known(cluster):
                self.stats.dropped["not_owned"] += 1
                return False
            # This process may own the cluster soon, and a raw source adds a request only once.
            self._undecided.setdefault(cluster, asyncio.get_running_loop().time())
        # The cluster is soon ready, owned or gone. A late renewal of a Lease ends no engagement, so no source would add
        # a dropped request again.
        self.queue.park(cluster)
        self.queue.add(request)
        return False

    def _count(self, cluster: str, result: Result | None) -> None:
        if result is None or not (result.requeue or result.requeue_after_seconds is not None):
            self.stats.count(cluster, "success")
        else:
            self.stats.count(cluster, "requeue" if result.requeue_after_seconds is None else "requeue_after")

    async def _failed(self, request: R, error: BaseException) -> None:
        self.stats.count(request.cluster, "error")
        self.stats.timeouts += isinstance(error, TimeoutError)
        if is_unreached(error):
            self.queue.note_unreached(request)
        if self._options.on_failure is not None:
            await self._options.on_failure(request, error)

    def _known(self, cluster: str) -> bool:
        """Tell whether the fleet has a cluster; the reconciler handles requests for unknown clusters."""
        try:
            self._manager.clusters.get(cluster)
        except ClusterNotFound:
            return False
        except ProviderError:
            pass
        return True

    async def _sweep(self) -> NoReturn:
        """Unpark clusters that are ready, drop clusters that have left, and end waits for clusters that joined."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            for cluster in self.queue.parked():
                if cluster in self._engaged:
                    if self._may_work(cluster):
                        self.queue.unpark(cluster)
                elif not self._known(cluster):
                    self.stats.dropped["gone"] += self.queue.drop(cluster)
                elif not self._may_work(cluster):
                    now = asyncio.get_running_loop().time()
                    if now - self._undecided.setdefault(cluster, now) > _UNDECIDED_SECONDS:
                        count = self.queue.drop(cluster)
                        self.stats.dropped["not_owned"] += count
                        log.info("%s: dropped %d requests for %s: another process has it", self.name, count, cluster)
            for cluster in self._awaited.clusters:
                # A cluster of another process joins without an engagement in this process.
                if self._known(cluster):
                    self._join(cluster)
            parked = frozenset(self.queue.parked())
            self._undecided = {name: since for name, since in self._undecided.items() if name in parked}

    def _fields(self, request: R) -> dict[str, Any]:
        if isinstance(request, Request):
            return {
                "controller": self.name,
                "cluster": request.cluster,
                "namespace": request.namespace,
                "name": request.name,
            }
        return {"controller": self.name, "cluster": request.cluster, "request": str(request)}
