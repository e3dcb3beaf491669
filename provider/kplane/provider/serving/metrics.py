"""Metrics of a manager, read at each scrape, so that series of a cluster end when the cluster leaves.

Names match controller-runtime if it has the metric. Histograms have no label for the cluster: 1,000 clusters would make
43,000 series of a single metric.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from kplane.provider.cluster.cluster import Cluster
from kplane.provider.coordination.leader import Leader
from kplane.provider.coordination.sharded import Sharded, ShardingStats
from kplane.provider.durations import BOUNDS_SECONDS, Durations
from kplane.provider.manager.manager import Manager

__all__ = ["ManagerMetrics", "Rendering", "process_families", "render_families", "sharding_metrics"]

_STATES: Final = ("Ready", "Connecting", "Unreachable")


def sharding_metrics(stats: ShardingStats) -> Iterator[Metric]:
    """Return the metrics of a `Sharded` coordinator, for custom collectors."""
    fences = GaugeMetricFamily(
        "multicluster_fences", "Leases that share the clusters out: all, and this process's.", labels=["state"]
    )
    for state, value in (("all", stats.fences), ("owned", stats.owned), ("draining", stats.draining)):
        fences.add_metric([state], value)
    yield fences
    yield GaugeMetricFamily("multicluster_peers", "Processes that share the clusters.", value=len(stats.peers))
    leases = CounterMetricFamily(
        "multicluster_lease_events", "What became of the Leases of this process.", labels=["event"]
    )
    events = {
        "acquired": stats.acquired,
        "renewed": stats.renewals,
        "failed": stats.failures,
        "lost": stats.lost,
        "released": stats.released,
    }
    for event, count in events.items():
        leases.add_metric([event], count)
    yield leases


class ManagerMetrics(Collector):
    """Collects the metrics of a manager for prometheus_client; `Serving` shows it at `/metrics`.

    With `cluster_labels=False`, sums replace the series of each cluster, for fleets that are too large for Prometheus.
    Counters of a cluster have no sum, because a sum would shrink when a cluster leaves. A custom registry must collect
    the metrics in the loop of the manager.
    """

    def __init__(self, manager: Manager, *, cluster_labels: bool = True) -> None:
        self._manager = manager
        self._cluster_labels = cluster_labels

    @override
    def collect(self) -> Iterator[Metric]:
        clusters = [engagement.cluster for engagement in self._manager.clusters.engagements()]
        yield from self._fleet(clusters)
        yield from self._coordination(clusters)
        yield from self._reading(clusters)
        yield from self._reconciles()
        yield from self._queues()

    def _fleet(self, clusters: Sequence[Cluster]) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "multicluster_clusters", "Clusters by the provider that found them and state.", labels=["provider", "state"]
        )
        counts = Counter((cluster.provider_name, cluster.health.state) for cluster in clusters)
        for provider in sorted({cluster.provider_name for cluster in clusters}):
            for state in _STATES:
                family.add_metric([provider, state], counts[provider, state])
        yield family
        yield CounterMetricFamily(
            "multicluster_engage_failures",
            "How often something failed to engage with a cluster.",
            value=self._manager.clusters.engage_failures,
        )
        yield _histogram(
            "multicluster_engage_seconds",
            "How long it took until something was engaged with a cluster.",
            [((), self._manager.clusters.engage_durations)],
        )
        if self._cluster_labels:
            up = GaugeMetricFamily(
                "multicluster_cluster_ready", "1 where what is read of the cluster is up to date.", labels=["cluster"]
            )
            for cluster in clusters:
                up.add_metric([cluster.name], cluster.health.state == "Ready")
            yield up

    def _coordination(self, clusters: Sequence[Cluster]) -> Iterator[Metric]:
        coordinator = self._manager.coordinator
        owned = sum(coordinator.may_work(cluster.name) for cluster in clusters)
        yield GaugeMetricFamily("multicluster_owned_clusters", "Clusters that this process works on.", value=owned)
        if isinstance(coordinator, Leader):
            text = "Whether this process leads: 1, or 0."
            yield GaugeMetricFamily("multicluster_leading", text, value=coordinator.leading)
        if isinstance(coordinator, Sharded):
            yield from sharding_metrics(coordinator.stats)

    def _reading(self, clusters: Sequence[Cluster]) -> Iterator[Metric]:
        caches = [(cluster.name, cache) for cluster in clusters if (cache := cluster.known_cache) is not None]
        refused = GaugeMetricFamily(
            "multicluster_refused_kinds",
            "Clusters that do not serve a kind, or do not let it be read.",
            labels=["kind", "reason"],
        )
        kinds = [(kind, refusal.reason) for cluster in clusters for kind, refusal in cluster.health.kinds.items()]
        refusals = Counter(kinds)
        for (kind, refusal_reason), count in refusals.items():
            refused.add_metric([kind, refusal_reason], count)
        yield refused
        yield self._requests()
        labels = ["cluster", "kind"] if self._cluster_labels else ["kind"]
        sizes = GaugeMetricFamily("multicluster_cache_bytes", "Bytes of the objects that are kept.", labels=labels)
        if not self._cluster_labels:
            sums: Counter[str] = Counter()
            for _, cache in caches:
                sums.update(cache.size_bytes())
            for kind, size in sums.items():
                sizes.add_metric([kind], size)
            yield sizes
            return
        restarts = CounterMetricFamily(
            "multicluster_watch_restarts", "Watches that ended, by reason.", labels=["cluster", "reason"]
        )
        for name, cache in caches:
            for kind, size in cache.size_bytes().items():
                sizes.add_metric([name, kind], size)
            for reason, count in cache.restarts.items():
                restarts.add_metric([name, reason], count)
        yield sizes
        yield restarts

    def _requests(self) -> Metric:
        family = CounterMetricFamily(
            "rest_client_requests",
            "Requests to API servers by method and status code, which is <error> without an answer.",
            labels=["method", "code"],
        )
        for (method, code), count in self._manager.connections.requests.items():
            family.add_metric([method, code], count)
        return family

    def _reconciles(self) -> Iterator[Metric]:
        total = CounterMetricFamily(
            "controller_runtime_reconcile", "Reconciles by controller and result.", labels=["controller", "result"]
        )
        errors = CounterMetricFamily(
            "controller_runtime_reconcile_errors", "Reconciles that failed.", labels=["controller"]
        )
        timeouts = CounterMetricFamily(
            "controller_runtime_reconcile_timeouts", "Reconciles that took too long.", labels=["controller"]
        )
        most = GaugeMetricFamily(
            "controller_runtime_max_concurrent_reconciles", "Reconciles at once, at most.", labels=["controller"]
        )
        active = GaugeMetricFamily("controller_runtime_active_workers", "Reconciles under way.", labels=["controller"])
        controllers = tuple(self._manager.controllers.values())
        for controller in controllers:
            stats = controller.stats
            for result in ("success", "error", "requeue", "requeue_after"):
                total.add_metric([controller.name, result], stats.reconciles[result])
            errors.add_metric([controller.name], stats.reconciles["error"])
            timeouts.add_metric([controller.name], stats.timeouts)
            most.add_metric([controller.name], controller.workers)
            active.add_metric([controller.name], sum(controller.under_way.values()))
        yield from (total, errors, timeouts, most, active)
        yield _histogram(
            "controller_runtime_reconcile_time_seconds",
            "How long reconciles took.",
            [((controller.name,), controller.stats.durations) for controller in controllers],
            labels=["controller"],
        )
        if self._cluster_labels:
            by_cluster = CounterMetricFamily(
                "multicluster_reconcile",
                "Reconciles by controller, cluster and result, of clusters that are engaged.",
                labels=["controller", "cluster", "result"],
            )
            for controller in controllers:
                for cluster, counts in controller.stats.by_cluster.items():
                    for outcome, count in counts.items():
                        by_cluster.add_metric([controller.name, cluster, outcome], count)
            yield by_cluster

    def _queues(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily("workqueue_depth", "Requests that wait.", labels=["name", "controller"])
        depths = {controller.name: controller.queue.depths() for controller in self._manager.controllers.values()}
        for name, of_clusters in depths.items():
            depth.add_metric([name, name], sum(of_clusters.values()))
        yield depth
        yield from self._work()
        if self._cluster_labels:
            by_cluster = GaugeMetricFamily(
                "multicluster_queue_depth", "Requests of a cluster that wait.", labels=["controller", "cluster"]
            )
            for name, of_clusters in depths.items():
                for cluster, waiting in of_clusters.items():
                    by_cluster.add_metric([name, cluster], waiting)
            yield by_cluster

    def _work(self) -> Iterator[Metric]:
        """Yield the queue metrics of client-go, except the depth, and the reasons of dropped requests."""
        labels = ["name", "controller"]
        adds = CounterMetricFamily("workqueue_adds", "Requests that were added.", labels=labels)
        retries = CounterMetricFamily("workqueue_retries", "Requests that were added with a delay.", labels=labels)
        unfinished = GaugeMetricFamily(
            "workqueue_unfinished_work_seconds", "How long the running reconciles have run, in sum.", labels=labels
        )
        longest = GaugeMetricFamily(
            "workqueue_longest_running_processor_seconds", "How long the longest of them has run.", labels=labels
        )
        dropped = CounterMetricFamily(
            "multicluster_dropped_requests", "Requests that were dropped, by reason.", labels=["controller", "reason"]
        )
        parked = GaugeMetricFamily(
            "multicluster_parked_requests",
            "Requests that wait for a cluster, by reason: it is not_ready, unreachable, or another one is missing.",
            labels=["controller", "reason"],
        )
        for name, controller in self._manager.controllers.items():
            seconds = controller.running_seconds()
            parked.add_metric([name, "not_ready"], sum(map(controller.queue.depth, controller.queue.parked())))
            parked.add_metric([name, "unreachable"], sum(map(controller.queue.depth, controller.queue.suspended())))
            parked.add_metric([name, "missing"], controller.awaiting)
            adds.add_metric([name, name], controller.queue.adds)
            retries.add_metric([name, name], controller.queue.retries)
            unfinished.add_metric([name, name], sum(seconds))
            longest.add_metric([name, name], max(seconds, default=0.0))
            for reason, count in {**controller.stats.dropped, "refused": controller.queue.refused}.items():
                dropped.add_metric([name, reason], count)
        yield from (adds, retries, unfinished, longest, dropped, parked)


def _histogram(
    name: str, text: str, series: Iterable[tuple[Sequence[str], Durations]], *, labels: Sequence[str] = ()
) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, durations in series:
        cumulative, buckets = 0, []
        for bound, count in zip([*map(str, BOUNDS_SECONDS), "+Inf"], durations.buckets, strict=True):
            cumulative += count
            buckets.append((bound, cumulative))
        family.add_metric(values, buckets, durations.total_seconds)
    return family


class _FixedCollector(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    @override
    def collect(self) -> Iterable[Metric]:
        return self._families


def process_families() -> Iterable[Metric]:
    """Return the metrics of this process: CPU, memory, open files."""
    return ProcessCollector(registry=None).collect()


def render_families(families: Iterable[Metric]) -> bytes:
    """Return metrics in the text format of Prometheus, in their order."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_FixedCollector(families))
    return generate_latest(registry)


class Rendering:
    """Serializes calls of `render`; all callers during a call share the result of the next call.

    So a caller waits for at most two renderings, and never gets a text from before its call. Results are not cached. If
    `render` fails, a single caller that shares the result gets the error, and the next caller retries.
    """

    def __init__(self, render: Callable[[], Awaitable[bytes]]) -> None:
        self._render: Final = render
        self._lock = asyncio.Lock()
        self._next = _Shared()

    async def text(self) -> bytes:
        """Return the result of the next call of `render`. Raises errors of `render`."""
        shared = self._next
        async with self._lock:
            if shared.text is None:
                self._next = _Shared()  # shared by callers from now on
                shared.text = await self._render()
            return shared.text


class _Shared:
    """The result for all callers during a rendering."""

    __slots__ = ("text",)

    def __init__(self) -> None:
        self.text: bytes | None = None
