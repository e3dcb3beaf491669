"""Writes metrics.md: the metrics of the programs, as their collectors yield them for an empty fleet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from types import SimpleNamespace
from typing import Final, TypeVar, cast

from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase

from kplane.controlplane_operator.app import collectors
from kplane.controlplane_operator.metrics import Metrics as OperatorMetrics
from kplane.controlplane_operator.watch.stores import Stores
from kplane.gateway.controller import Controller
from kplane.gateway.status import Collected
from kplane.mcm.serving.metric_allowlist import SERIES, Sample
from kplane.mcm.serving.metrics import fleet_families, scrape_family
from kplane.provider.coordination.election import Election
from kplane.provider.coordination.leader import Leader
from kplane.provider.coordination.sharded import ShardingStats
from kplane.provider.durations import Durations
from kplane.provider.manager.manager import Manager
from kplane.provider.serving.metrics import ManagerMetrics, process_families, sharding_metrics
from tools.reference.markdown import code, page, table

__all__ = ["metrics"]

_T = TypeVar("_T")

_HEAD: Final = ("metric", "type", "labels", "meaning")


def metrics() -> str:
    """Return the page."""
    return page(
        "Metrics",
        "This page lists the metrics of the programs. Each program serves its own at `/metrics`.",
        "A histogram has the series `_bucket`, `_sum` and `_count`. controlplane-operator, mcm and managers also have"
        f" metrics of their process: {_codes(sorted(_series(each) for each in process_families()))}.",
        "## Metrics of controlplane-operator",
        "It also has the [metrics of a manager](#metrics-of-a-manager-of-kplaneprovider), without those of clusters.",
        table(_HEAD, _operator()),
        "## Metrics of mcm",
        "The label `cluster` is the name of the registration.",
        table(_HEAD, _rows([*fleet_families([], pss={}), scrape_family()])),
        "### Metrics of instances",
        "With `--instance-metrics=fixed`, mcm serves these of each instance. Their labels `cluster` and `program` name"
        " the instance.",
        table(_HEAD, _instances()),
        "### Metrics of several mcm",
        "With `--cluster-sharding`, mcm serves these too.",
        table(_HEAD, _rows(sharding_metrics(_stats()))),
        "## Metrics of kplane-gateway",
        "The label `control_plane` is the clusterPath.",
        table(_HEAD, _rows(_gateway())),
        "## Metrics of a manager of kplane.provider",
        "`ManagerMetrics` and `Serving` of `kplane.provider.serving` serve these, also for operators of your own. With"
        " `cluster_labels=False`, those of single clusters are left out. `multicluster_leading` needs the coordinator"
        " `Leader`. The coordinator `Sharded` has the [metrics of several mcm](#metrics-of-several-mcm) too.",
        table(_HEAD, _manager()),
    )


def _rows(families: Iterable[Metric], *, labels: Mapping[str, Sequence[str]] | None = None) -> Iterator[list[str]]:
    """Yield a row for each metric. `labels` has the labels that a metric without samples does not show."""
    for family in families:
        found = (labels or {}).get(family.name) or _labels(family)
        yield [code(_series(family)), family.type, _codes(found), family.documentation]


def _series(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labels(family: Metric) -> Sequence[str]:
    declared: Sequence[str] = getattr(family, "_labelnames", ())
    samples_labels = dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
    return declared or list(samples_labels)


def _codes(words: Iterable[str]) -> str:
    return ", ".join(map(code, words))


def _operator() -> Iterator[list[str]]:
    counted, stores = OperatorMetrics(), _fake(Stores, control_planes=(), secrets=(), classes=())
    instruments = [each for each in vars(counted).values() if isinstance(each, MetricWrapperBase)]
    declared = {family.name: getattr(each, "_labelnames", ()) for each in instruments for family in each.describe()}
    counted.elected("", leading=lambda: False)
    for collector in collectors(stores, usage=lambda _: None):
        counted.registry.register(collector)
    process = {family.name for family in process_families()}
    yield from _rows((each for each in counted.registry.collect() if each.name not in process), labels=declared)


def _instances() -> Iterator[list[str]]:
    for name, series in SERIES.items():
        yield [code(name), series.type, _codes(series.labels(Sample(name, "", ""))), series.help]


def _gateway() -> Iterable[Metric]:
    return Collected(_fake(Controller, routes=()), {}, waiting=0, held=0).collect()


def _manager() -> Iterator[list[str]]:
    clusters = SimpleNamespace(engagements=lambda: (), engage_durations=Durations(), engage_failures=0)
    connections = SimpleNamespace(requests={})
    leader = Leader(_fake(Election, lease=SimpleNamespace(held=False)))
    manager = _fake(Manager, clusters=clusters, connections=connections, coordinator=leader, controllers={})
    yield from _rows(ManagerMetrics(manager).collect())


def _stats() -> ShardingStats:
    numbers = [each.name for each in fields(ShardingStats) if each.name != "peers"]
    return ShardingStats(peers=(), **dict.fromkeys(numbers, 0))


def _fake(kind: type[_T], **attributes: object) -> _T:
    """Return an object with these attributes, for a collector that reads no other attributes of an empty fleet."""
    del kind
    return cast("_T", SimpleNamespace(**attributes))
