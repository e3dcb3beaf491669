"""Dashboard and ServiceMonitors of the chart, compared with the series that the programs expose."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from kplane.components.etcd import ETCD_PORTS
from kplane.components.mcm import MCM_PORTS
from kplane.components.names import apiserver_name, etcd_name, mcm_name, place
from kplane.controlplane_operator.controlplanes.service_monitors import METRIC_RELABELINGS
from kplane.workloads.pods.objects import labels_of

from .series import FROM_PROMETHEUS, every_series

pytestmark = pytest.mark.integration

SCRAPED = {"metrics.serviceMonitor.enabled": True, "networkPolicy.metricsFrom": [{"podSelector": {}}]}
TEMPLATE = {"mcm.source.kubeconfigSecretTemplate": "kplane-cp-{name}/controlplane-{name}-controllers"}
_METRIC = re.compile(r"([a-z_]+){")
_LABEL = re.compile(r"{{(\w+)}}")


def queries(dashboard: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


async def test_panels_query_metrics_and_labels_that_programs_expose(
    chart: Any, etcd: Any, api_server: Any, eventually: Any
) -> None:
    """Renamed metrics would silently leave panels empty."""
    series = await every_series(etcd, api_server, eventually)
    rendered = chart.render(settings={"metrics.dashboard.enabled": True})
    dashboard = json.loads(rendered.one("ConfigMap", "kplane-dashboard")["data"]["kplane.json"])
    problems = []
    for title, expression, legend in queries(dashboard):
        metrics = _METRIC.findall(expression)
        assert metrics, title
        labels = set(_LABEL.findall(legend)) | set(re.findall(r"by \(([^)]*)\)", expression.replace(" ", "")))
        panel_labels = {label for text in labels for label in text.split(",")} - FROM_PROMETHEUS
        problems += [f"{title}: no metric {metric}" for metric in metrics if metric not in series]
        problems += [
            f"{title}: {metric} has no label {label}"
            for metric in metrics
            for label in panel_labels - series.get(metric, set())
        ]
    assert problems == []
    assert len(list(queries(dashboard))) > 20


def test_each_service_monitor_selects_a_service_with_its_port(chart: Any) -> None:
    """The Service has the port that the ServiceMonitor names, and its pods listen on that port."""
    rendered = chart.render(settings=SCRAPED)
    services = [item for item in rendered.manifests if item["kind"] == "Service"]
    pods = rendered.pod_templates().values()
    monitors = [item for item in rendered.manifests if item["kind"] == "ServiceMonitor"]
    for monitor in (item for item in monitors if not item["metadata"]["name"].endswith("-dedicated")):
        selector = monitor["spec"]["selector"]["matchLabels"].items()
        (service,) = [item for item in services if selector <= item["metadata"]["labels"].items()]
        (endpoint,) = monitor["spec"]["endpoints"]
        (port,) = [port for port in service["spec"]["ports"] if port["name"] == endpoint["port"]]
        selected = service["spec"]["selector"].items()
        (pod,) = [pod for pod in pods if selected <= pod["metadata"]["labels"].items()]
        assert port["targetPort"] in {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    assert rendered.names("ServiceMonitor") == [
        f"kplane-{name}" for name in ("etcd", "etcd-dedicated", "mcm", "mcm-dedicated", "operator")
    ]


async def test_monitor_of_dedicated_etcd_keeps_the_series_of_panels(
    chart: Any, etcd: Any, api_server: Any, eventually: Any
) -> None:
    """All series of a thousand etcds would overload Prometheus. Each kept series exists."""
    monitor = chart.render(settings=SCRAPED).one("ServiceMonitor", "kplane-etcd-dedicated")["spec"]
    names = apiserver_name("acme"), etcd_name("acme"), mcm_name("acme", uid="1")
    selected = [name for name in names if selects(monitor["selector"], labels_of(name, placement=place(name)))]
    assert selected == [etcd_name("acme")]
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in ETCD_PORTS
    (keep,) = endpoint["metricRelabelings"]
    series = await every_series(etcd, api_server, eventually)
    kept_names = {name for name in series if re.fullmatch(keep["regex"], name)}
    assert kept_names == {
        "etcd_mvcc_db_total_size_in_bytes",
        "etcd_mvcc_db_total_size_in_use_in_bytes",
        "etcd_server_has_leader",
        "etcd_server_leader_changes_seen_total",
        "etcd_server_quota_backend_bytes",
        "process_resident_memory_bytes",
    }
    dashboard = json.loads((chart.directory / "files" / "dashboard.json").read_text())
    expressions = [expression for _, expression, _ in queries(dashboard) if "$dedicated" in expression]
    assert {metric for expression in expressions for metric in _METRIC.findall(expression)} <= kept_names


def test_api_server_monitor_keeps_series_of_panels_and_alerts(chart: Any) -> None:
    """Prometheus drops all other series of an API server before it stores them."""
    rendered = chart.render(settings={"metrics.prometheusRule.enabled": True})
    (group,) = rendered.one("PrometheusRule", "kplane")["spec"]["groups"]
    dashboard = json.loads((chart.directory / "files" / "dashboard.json").read_text())
    expressions = [expression for _, expression, _ in queries(dashboard) if "$apiservers" in expression]
    expressions += [rule["expr"] for rule in group["rules"] if "-apiserver" in rule["expr"]]
    keep, _ = METRIC_RELABELINGS
    metrics = {metric for expression in expressions for metric in _METRIC.findall(expression)} - {"up"}
    bounds = {"apiserver_request_duration_seconds_bucket": "1"}
    assert len(metrics) > 10
    assert {name for name in metrics if not re.fullmatch(keep["regex"], f"{name};{bounds.get(name, '')}")} == set()


def test_monitor_of_dedicated_mcm_selects_only_pods_of_mcm(chart: Any) -> None:
    """API servers and etcds of tenants have other monitors. All mcm share a job."""
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
    operators = {
        "Exists": lambda value, _: value is not None,
        "NotIn": lambda value, values: value not in values,
    }
    return selector["matchLabels"].items() <= labels.items() and all(
        operators[requirement["operator"]](labels.get(requirement["key"]), requirement.get("values"))
        for requirement in selector["matchExpressions"]
    )
