"""Metrics of mcm: a fixed set of series for each cluster, none for a cluster that is gone."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from mcm.exits import EXIT_REASONS
from mcm.fleet import ClusterSummary, Fleet, State

__all__ = ["Metrics"]

_PSS_BUDGET_SECONDS: Final = 2.0


class Metrics:
    """Renders the fleet for Prometheus. Nothing is kept between scrapes."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._scrape = asyncio.Lock()

    async def render(self) -> bytes:
        """The text format. Several scrapes at once wait for each other, so that they cost no more than one."""
        async with self._scrape:
            summaries = self._fleet.summaries()
            pss = await asyncio.to_thread(_pss_by_pid, [pid for found in summaries for pid in found.pids])
            registry = CollectorRegistry()
            ProcessCollector(registry=registry)
            registry.register(_FleetCollector(summaries, pss=pss))
            return generate_latest(registry)


class _FleetCollector(Collector):
    def __init__(self, summaries: Sequence[ClusterSummary], *, pss: Mapping[int, int]) -> None:
        self._summaries = summaries
        self._pss = pss

    @override
    def collect(self) -> Iterable[Metric]:
        clusters = GaugeMetricFamily("mcm_clusters", "Clusters by the state of their instance.", labels=["state"])
        counts = Counter(found.state for found in self._summaries)
        for state in State:
            clusters.add_metric([state], counts[state])
        up = GaugeMetricFamily("mcm_instance_up", "1 where the cluster's instance is ready.", labels=["cluster"])
        restarts = CounterMetricFamily(
            "mcm_instance_restarts", "Starts after the instance ended by itself.", labels=["cluster"]
        )
        pss = GaugeMetricFamily(
            "mcm_instance_pss_bytes",
            "Memory of the instances of a cluster, their share of shared pages included.",
            labels=["cluster"],
        )
        exits = CounterMetricFamily(
            "mcm_instance_exits", "Ends of the instance by itself, by the reason.", labels=["cluster", "reason"]
        )
        for found in self._summaries:
            for reason in EXIT_REASONS:
                exits.add_metric([found.name, reason], found.exits.get(reason, 0))
            up.add_metric([found.name], found.state is State.READY)
            restarts.add_metric([found.name], found.restarts)
            measured = [self._pss[pid] for pid in found.pids if pid in self._pss]
            if measured:
                pss.add_metric([found.name], sum(measured))
        return [clusters, up, restarts, exits, pss]


def _pss_by_pid(pids: Iterable[int]) -> dict[int, int]:
    """Bytes by process; those that end meanwhile, or that the time does not suffice for, are left out."""
    deadline = time.monotonic() + _PSS_BUDGET_SECONDS
    found = {}
    for pid in pids:
        if time.monotonic() > deadline:
            break
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        if line := next((line for line in rollup.splitlines() if line.startswith("Pss:")), None):
            found[pid] = int(line.split()[1]) * 1024
    return found
