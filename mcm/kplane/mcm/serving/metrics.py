"""Metrics of mcm and its instances: a fixed set of series for each present cluster."""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kplane.mcm.instance.exits import EXIT_REASONS
from kplane.mcm.instance.lifecycle import Origin, Target
from kplane.mcm.instance.memory import pss_by_pid
from kplane.mcm.serving.metric_allowlist import SERIES, Values, allowed_values
from kplane.mcm.serving.overview import ClusterSummary, Overview, State
from kplane.mcm.serving.scrape import Scraper
from kplane.provider.serving.metrics import Rendering, process_families, render_families

__all__ = ["InstanceMetrics", "Metrics", "fleet_families", "scrape_family"]


class _Answers(NamedTuple):
    """Metrics that instances returned, and the instances that were asked."""

    asked: Sequence[Origin] = ()
    values: Mapping[Origin, Values] = MappingProxyType({})


class InstanceMetrics(enum.StrEnum):
    """Choice of the metrics of instances that mcm exposes."""

    NONE = "none"
    """No metrics of instances; mcm does not read them."""
    FIXED = "fixed"
    """`kplane.mcm.serving.metric_allowlist.SERIES`: a few series for each cluster."""


class Metrics:
    """Renders the metrics of the fleet for Prometheus, without state between scrapes.

    `scraper` reads the metrics of instances; None: they are left out. `more` returns metrics that belong to no cluster.
    """

    def __init__(
        self,
        overview: Overview,
        *,
        scraper: Scraper | None = None,
        more: Callable[[], Iterable[Metric]] = tuple,
    ) -> None:
        self._overview = overview
        self._more = more
        self._scraper = scraper
        self._rendering = Rendering(self._render)

    async def render(self) -> bytes:
        """Return the metrics in text format. Requests during a scrape of the instances share the next answer."""
        return await self._rendering.text()

    async def _render(self) -> bytes:
        pids = [pid for summary in self._overview.summaries() for pid in summary.pids]
        async with asyncio.TaskGroup() as tasks:
            measured = tasks.create_task(asyncio.to_thread(pss_by_pid, pids), name="memory of instances")
            asked = tasks.create_task(self._ask(), name="metrics of instances")
        pss, answers = measured.result(), asked.result()
        return render_families(self._collect(pss, answers))

    async def _ask(self) -> _Answers:
        if self._scraper is None:
            return _Answers()
        targets = self._overview.targets()
        return _Answers(sorted(target.origin for target in targets), await self._scraper.scrape(targets, take=_values))

    def _collect(self, pss: Mapping[int, int], answers: _Answers) -> Iterable[Metric]:
        summaries = self._overview.summaries()  # the present state: some clusters ended during the scrape
        families = {family.name: family for family in process_families()}
        families |= {family.name: family for family in (*fleet_families(summaries, pss=pss), *self._more())}
        success = scrape_family()
        present = {summary.name for summary in summaries}
        for origin in answers.asked:
            if origin.cluster in present:
                success.add_metric([*origin], origin in answers.values)
                _add(families, origin, values=answers.values.get(origin, {}))
        return [*families.values(), success]


def _values(_: Target, text: str) -> Values:
    return allowed_values(text.split("\n"))


def scrape_family() -> GaugeMetricFamily:
    """Return the metric of the success of scrapes, without samples."""
    return GaugeMetricFamily(
        "mcm_instance_scrape_success",
        "1 if the metrics of the cluster's ready instance of the program were read.",
        labels=["cluster", "program"],
    )


def fleet_families(summaries: Iterable[ClusterSummary], *, pss: Mapping[int, int]) -> list[Metric]:
    """Return mcm's own metrics of the fleet; `pss` is the memory in bytes of each process."""
    rows = list(summaries)
    clusters = GaugeMetricFamily("mcm_clusters", "Clusters by the state of their instance.", labels=["state"])
    counts = Counter(summary.state for summary in rows)
    for state in State:
        clusters.add_metric([state], counts[state])
    up = GaugeMetricFamily("mcm_instance_up", "1 if the cluster's instance is ready.", labels=["cluster"])
    restarts = CounterMetricFamily(
        "mcm_instance_restarts", "Starts after the instance ended by itself.", labels=["cluster"]
    )
    memory = GaugeMetricFamily(
        "mcm_instance_pss_bytes",
        "Memory of the instances of a cluster, their share of shared pages included.",
        labels=["cluster"],
    )
    exits = CounterMetricFamily(
        "mcm_instance_exits", "Ends of the instance by itself, by the reason.", labels=["cluster", "reason"]
    )
    for summary in rows:
        up.add_metric([summary.name], summary.state is State.READY)
        restarts.add_metric([summary.name], summary.restarts)
        for reason in EXIT_REASONS:
            exits.add_metric([summary.name, reason], summary.exits.get(reason, 0))
        if measured := [pss[pid] for pid in summary.pids if pid in pss]:
            memory.add_metric([summary.name], sum(measured))
    return [clusters, up, restarts, exits, memory]


def _add(families: dict[str, Metric], origin: Origin, *, values: Values) -> None:
    """Add the metrics of an instance. mcm itself has some metrics of the same names, without the labels of `origin`."""
    for (name, labels), value in values.items():
        series = SERIES[name]
        base = name.removesuffix("_total") if series.type == "counter" else name
        family = families.setdefault(base, Metric(base, series.help, series.type))
        family.add_sample(name, {**origin._asdict(), **dict(labels)}, value)
