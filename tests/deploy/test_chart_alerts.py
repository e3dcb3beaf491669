"""Alerts of the chart: expressions, documentation, and panels of the dashboard."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest

from kplane.api.reasons import Cause

from .series import FROM_PROMETHEUS, every_series

pytestmark = pytest.mark.integration

DOCUMENT = Path(__file__).parents[2] / "docs" / "troubleshoot" / "alerts.md"
ON = {"metrics.prometheusRule.enabled": True}
_SECTION = re.compile(r"^## (\w+)\n\n```promql\n(.+)\n```\n\nFor (\w+), (critical|warning|info)\. \S", re.MULTILINE)
_JOB = "--service-monitor-job="
_LABEL = re.compile(r"\$labels\.(\w+)")


def alerts(chart: Any, **settings: Any) -> dict[str, dict[str, Any]]:
    rule = chart.render(settings=ON | settings).one("PrometheusRule", "kplane")
    (group,) = rule["spec"]["groups"]
    return {alert["alert"]: alert for alert in group["rules"]}


def selectors(expression: str) -> dict[str, set[str]]:
    """Return the labels that an expression matches, by metric. Raises ValueError for invalid PromQL."""
    labels: dict[str, set[str]] = {}

    def visit(node: Any) -> None:
        if isinstance(node, promql.MatrixSelector):
            node = node.vector_selector
        if isinstance(node, promql.VectorSelector):
            labels.setdefault(node.name or "", set()).update(matcher.name for matcher in node.matchers.matchers)

    promql.walk(promql.parse(expression), visit)
    return labels


def test_document_has_a_section_for_each_alert(chart: Any) -> None:
    """The order is the same, and each annotation `runbook` links to the section."""
    rules = alerts(chart)
    rendered = [(name, rule["expr"], rule["for"], rule["labels"]["severity"]) for name, rule in rules.items()]
    assert _SECTION.findall(DOCUMENT.read_text()) == rendered
    assert DOCUMENT.read_text().count("\n## ") == len(rendered)
    monitor = Path(__file__).parents[2] / "docs" / "how-to" / "monitor.md"
    assert f"[{len(rendered)} alerts](../troubleshoot/alerts.md)" in monitor.read_text()
    assert {rule["annotations"]["runbook"] for rule in rules.values()} == {
        f"docs/troubleshoot/alerts.md#{name.lower()}" for name in rules
    }


def test_control_plane_alerts_separate_system_and_user_causes(chart: Any) -> None:
    rules = alerts(chart)
    named = rules["KplaneControlPlaneNotReady"], rules["KplaneControlPlaneMisconfigured"]
    assert [re.findall(r'cause="(\w+)"', rule["expr"]) for rule in named] == [[Cause.SYSTEM], [Cause.USER]]
    assert [rule["labels"]["severity"] for rule in named] == ["warning", "info"]
    for rule in named:
        assert {"control_plane", "reason"} <= set(_LABEL.findall(rule["annotations"]["summary"]))


async def test_alerts_query_metrics_and_labels_that_programs_expose(
    chart: Any, etcd: Any, api_server: Any, eventually: Any
) -> None:
    """An alert on a metric that does not exist never fires."""
    series = await every_series(etcd, api_server, eventually)
    problems = []
    for name, alert in alerts(chart).items():
        summary_labels = set(_LABEL.findall(alert["annotations"]["summary"])) - FROM_PROMETHEUS
        for metric, labels in selectors(alert["expr"]).items():
            problems += [] if metric in series else [f"{name}: no metric {metric}"]
            missing = (labels | summary_labels) - FROM_PROMETHEUS - series.get(metric, set())
            problems += [f"{name}: {metric} has no label {label}" for label in sorted(missing)]
    assert problems == []


def test_dashboard_shows_every_metric_of_the_alerts(chart: Any) -> None:
    dashboard = json.loads((chart.directory / "files" / "dashboard.json").read_text())
    panel_metrics = {
        metric
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
        for metric in selectors(target["expr"].replace("$__rate_interval", "5m"))
    }
    alert_by_metric = {metric: name for name, alert in alerts(chart).items() for metric in selectors(alert["expr"])}
    assert {name: metric for metric, name in alert_by_metric.items() if metric not in panel_metrics} == {}


def test_alerts_select_jobs_of_services_and_service_monitors(chart: Any) -> None:
    """The name of a job is the name of its Service, or the relabeling of its ServiceMonitor."""
    monitored = {"metrics.serviceMonitor.enabled": True, "networkPolicy.metricsFrom": [{"podSelector": {}}]}
    settings = ON | monitored | {"gateway.enabled": True, "gateway.url": "https://api.example.org"}
    rendered = chart.render(release="prod", settings=settings)
    jobs = set(rendered.names("Service"))
    for monitor in (item for item in rendered.manifests if item["kind"] == "ServiceMonitor"):
        for relabeling in monitor["spec"]["endpoints"][0].get("relabelings", ()):
            jobs.add(relabeling["replacement"])
    (operator,) = rendered.pod_templates()["Deployment/prod-kplane-operator"]["spec"]["containers"]
    jobs |= {flag.removeprefix(_JOB) for flag in operator["args"] if flag.startswith(_JOB)}
    text = json.dumps(rendered.one("PrometheusRule", "prod-kplane"))
    alert_jobs = {job for match in re.findall(r'job=\\"([^"\\]+)', text) for job in [match]}
    programs = ("operator", "mcm", "gateway-metrics", "etcd-peers", "etcd-dedicated", "apiserver")
    assert alert_jobs == {f"prod-kplane-{program}" for program in programs}
    assert alert_jobs <= jobs
    assert "RELEASE" not in text
    assert 'namespace=\\"kplane-system\\"' in text


def test_member_alert_compares_with_the_number_of_replicas(chart: Any) -> None:
    three = {"etcd.replicas": 3, "etcd.backup.accessMode": "ReadWriteMany"}
    for members, settings in ((1, {}), (3, three)):
        (expression,) = [
            alert["expr"] for name, alert in alerts(chart, **settings).items() if name == "KplaneEtcdMembers"
        ]
        assert f"< {members} or absent(" in expression


def test_external_etcd_removes_the_alerts_of_etcd(chart: Any) -> None:
    external = {"endpoint": "https://etcd.example.org:2379", "credentialsSecret": "root"}
    remaining = alerts(chart, **{"etcd.enabled": False, "etcd.external": external})
    assert set(alerts(chart)) - set(remaining) == {"KplaneEtcdMembers", "KplaneEtcdFull"}
