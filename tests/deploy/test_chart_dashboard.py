"""The dashboard asks for what the programs tell."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kplane.controlplane_operator.backends.mcm import MCM_PORTS
from kplane.controlplane_operator.component_names import apiserver_name, etcd_name, mcm_name, place
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.metrics import Metrics as OperatorMetrics
from kplane.controlplane_operator.watch.cache import Store
from kplane.mcm.describe.controllers import PROGRAM
from kplane.mcm.instance.lifecycle import Origin, Target
from kplane.mcm.serving.metric_allowlist import SERIES
from kplane.mcm.serving.metrics import Metrics as McmMetrics
from kplane.mcm.serving.overview import ClusterSummary, Overview, State
from kplane.mcm.serving.scrape import Scraper
from kplane.provider import Result
from kplane.provider.controllers.queue import FairQueue
from kplane.workloads.pods.objects import labels_of

pytestmark = pytest.mark.integration

SCRAPED = {"metrics.serviceMonitor.enabled": True, "networkPolicy.metricsFrom": [{"podSelector": {}}]}
TEMPLATE = {"mcm.source.kubeconfigSecretTemplate": "kplane-cp-{name}/controlplane-{name}-controllers"}
_METRIC = re.compile(r"([a-z_]+){")
_LABEL = re.compile(r"{{(\w+)}}")

FROM_PROMETHEUS = {"job", "pod"}
"""Labels that a ServiceMonitor adds."""


def series(text: str) -> dict[str, set[str]]:
    """Labels by the name of the metric."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


async def operator_series() -> dict[str, set[str]]:
    metrics = OperatorMetrics()
    metrics.observe(control_planes=Store(CONTROL_PLANES), queues={"controlplane": FairQueue()})

    async def reconcile(key: Any) -> Result | None:
        if key == "broken":
            raise RuntimeError(key)
        return None

    measured = metrics.timed("controlplane", reconcile=reconcile)
    await measured(("", "a"))
    with pytest.raises(RuntimeError):
        await measured("broken")  # type: ignore[arg-type]
    return series(generate_latest(metrics.registry).decode())


async def mcm_series() -> dict[str, set[str]]:
    summary = ClusterSummary(name="a", state=State.READY, profile="Core", server="https://a", pid=os.getpid())
    overview = Mock(Overview)
    overview.summaries.return_value = [summary]
    scraper = Mock(Scraper)
    overview.targets.return_value = [Target(Origin("a", PROGRAM), "https://127.0.0.1:1/metrics", b"")]

    async def scrape(targets: Any, *, take: Any) -> dict[Origin, Any]:
        labels = {"rest_client_requests_total": '{code="200"}', "workqueue_depth": '{name="a"}'}
        text = "\n".join(f"{name}{labels.get(name, '')} 1" for name in SERIES)
        return {target.origin: take(target, text) for target in targets}

    scraper.scrape = scrape
    return series((await McmMetrics(overview, scraper=scraper).render()).decode())


def queries(dashboard: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


async def test_each_panel_asks_for_metrics_and_labels_that_exist(chart: Any, etcd: Any, eventually: Any) -> None:
    """Renamed metrics would leave panels empty, and nobody would notice until they are needed."""
    known: dict[str, set[str]] = {}
    told = await operator_series(), await mcm_series(), series(await eventually(etcd.metrics, timeout=120))
    for name, labels in (item for found in told for item in found.items()):
        known.setdefault(name, set()).update(labels)
    rendered = chart.render(settings={"metrics.dashboard.enabled": True})
    dashboard = json.loads(rendered.one("ConfigMap", "kplane-dashboard")["data"]["kplane.json"])
    wrong = []
    for title, expression, legend in queries(dashboard):
        metrics = _METRIC.findall(expression)
        assert metrics, title
        labels = set(_LABEL.findall(legend)) | set(re.findall(r"by \(([^)]*)\)", expression.replace(" ", "")))
        wanted = {label for text in labels for label in text.split(",")} - FROM_PROMETHEUS
        wrong += [f"{title}: no metric {metric}" for metric in metrics if metric not in known]
        wrong += [
            f"{title}: {metric} has no label {label}"
            for metric in metrics
            for label in wanted - known.get(metric, set())
        ]
    assert wrong == []
    assert len(list(queries(dashboard))) > 20


def test_prometheus_finds_each_component(chart: Any) -> None:
    """Each ServiceMonitor selects one Service, which has the port that it names, on pods that listen there."""
    rendered = chart.render(settings=SCRAPED)
    services = [item for item in rendered.manifests if item["kind"] == "Service"]
    pods = rendered.pod_templates().values()
    monitors = [item for item in rendered.manifests if item["kind"] == "ServiceMonitor"]
    for monitor in (item for item in monitors if item["metadata"]["name"] != "kplane-mcm-dedicated"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (service,) = [item for item in services if wanted <= item["metadata"]["labels"].items()]
        (endpoint,) = monitor["spec"]["endpoints"]
        (port,) = [port for port in service["spec"]["ports"] if port["name"] == endpoint["port"]]
        selected = service["spec"]["selector"].items()
        (pod,) = [pod for pod in pods if selected <= pod["metadata"]["labels"].items()]
        assert port["targetPort"] in {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    assert rendered.names("ServiceMonitor") == [
        f"kplane-{name}" for name in ("etcd", "mcm", "mcm-dedicated", "operator")
    ]


def test_prometheus_finds_each_mcm_of_one_registration(chart: Any) -> None:
    """And no API server and etcd of a tenant beside it; all mcm are one job."""
    monitor = chart.render(settings=SCRAPED).one("ServiceMonitor", "kplane-mcm-dedicated")["spec"]
    assert monitor["namespaceSelector"] == {"any": True}
    (endpoint,) = monitor["endpoints"]
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": "kplane-mcm"}]
    assert [
        name
        for name in (mcm_name("acme", uid="1"), apiserver_name("acme"), etcd_name("acme"))
        if selects(monitor["selector"], labels_of(name, placement=place(name)))
    ] == [mcm_name("acme", uid="1")]
    assert endpoint["port"] in MCM_PORTS

    for without in ({"mcm.reportStatus": False}, {"mcm.source.kind": "controlplaneendpoint", **TEMPLATE}):
        assert "kplane-mcm-dedicated" not in chart.render(settings=SCRAPED | without).names("ServiceMonitor")


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    holds = {
        "Exists": lambda value, _: value is not None,
        "NotIn": lambda value, values: value not in values,
    }
    return selector["matchLabels"].items() <= labels.items() and all(
        holds[each["operator"]](labels.get(each["key"]), each.get("values")) for each in selector["matchExpressions"]
    )
