"""The alerts: their expressions, their documentation, and what the dashboard shows of them."""

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
    return {each["alert"]: each for each in group["rules"]}


def selectors(expression: str) -> dict[str, set[str]]:
    """Labels that an expression matches, by the name of the metric. Raises ValueError where it is no PromQL."""
    found: dict[str, set[str]] = {}

    def visit(node: Any) -> None:
        if isinstance(node, promql.MatrixSelector):
            node = node.vector_selector
        if isinstance(node, promql.VectorSelector):
            found.setdefault(node.name or "", set()).update(each.name for each in node.matchers.matchers)

    promql.walk(promql.parse(expression), visit)
    return found


def test_the_document_has_each_alert(chart: Any) -> None:
    """In the same order, and each annotation `runbook` leads to its section."""
    found = alerts(chart)
    rendered = [(name, each["expr"], each["for"], each["labels"]["severity"]) for name, each in found.items()]
    assert _SECTION.findall(DOCUMENT.read_text()) == rendered
    assert DOCUMENT.read_text().count("\n## ") == len(rendered)
    monitor = Path(__file__).parents[2] / "docs" / "how-to" / "monitor.md"
    assert f"[{len(rendered)} alerts](../troubleshoot/alerts.md)" in monitor.read_text()
    assert {each["annotations"]["runbook"] for each in found.values()} == {
        f"docs/troubleshoot/alerts.md#{name.lower()}" for name in found
    }


def test_alert_of_a_control_plane_names_it_and_leaves_mistakes_of_users_out(chart: Any) -> None:
    found = alerts(chart)
    named = found["KplaneControlPlaneNotReady"], found["KplaneControlPlaneMisconfigured"]
    assert [re.findall(r'cause="(\w+)"', each["expr"]) for each in named] == [[Cause.SYSTEM], [Cause.USER]]
    assert [each["labels"]["severity"] for each in named] == ["warning", "info"]
    for each in named:
        assert {"control_plane", "reason"} <= set(_LABEL.findall(each["annotations"]["summary"]))


async def test_each_alert_asks_for_metrics_and_labels_that_exist(
    chart: Any, etcd: Any, api_server: Any, eventually: Any
) -> None:
    """One that asks for a metric of another name never fires."""
    known = await every_series(etcd, api_server, eventually)
    wrong = []
    for name, alert in alerts(chart).items():
        told = set(_LABEL.findall(alert["annotations"]["summary"])) - FROM_PROMETHEUS
        for metric, labels in selectors(alert["expr"]).items():
            wrong += [] if metric in known else [f"{name}: no metric {metric}"]
            missing = (labels | told) - FROM_PROMETHEUS - known.get(metric, set())
            wrong += [f"{name}: {metric} has no label {label}" for label in sorted(missing)]
    assert wrong == []


def test_the_dashboard_has_a_panel_for_each_alert(chart: Any) -> None:
    dashboard = json.loads((chart.directory / "files" / "dashboard.json").read_text())
    shown = {
        metric
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
        for metric in selectors(target["expr"].replace("$__rate_interval", "5m"))
    }
    asked = {metric: name for name, alert in alerts(chart).items() for metric in selectors(alert["expr"])}
    assert {name: metric for metric, name in asked.items() if metric not in shown} == {}


def test_jobs_are_those_that_prometheus_gives(chart: Any) -> None:
    """A job has the name of its Service, or the one that its ServiceMonitor sets."""
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
    asked = {job for found in re.findall(r'job=\\"([^"\\]+)', text) for job in [found]}
    programs = ("operator", "mcm", "gateway-metrics", "etcd-peers", "etcd-dedicated", "apiserver")
    assert asked == {f"prod-kplane-{program}" for program in programs}
    assert asked <= jobs
    assert "RELEASE" not in text
    assert 'namespace=\\"kplane-system\\"' in text


def test_a_lost_member_is_told_whatever_their_number(chart: Any) -> None:
    three = {"etcd.replicas": 3, "etcd.backup.accessMode": "ReadWriteMany"}
    for members, settings in ((1, {}), (3, three)):
        (expression,) = [
            alert["expr"] for name, alert in alerts(chart, **settings).items() if name == "KplaneEtcdMembers"
        ]
        assert f"< {members} or absent(" in expression


def test_an_etcd_of_the_users_has_alerts_of_its_own(chart: Any) -> None:
    external = {"endpoint": "https://etcd.example.org:2379", "credentialsSecret": "root"}
    found = alerts(chart, **{"etcd.enabled": False, "etcd.external": external})
    assert set(alerts(chart)) - set(found) == {"KplaneEtcdMembers", "KplaneEtcdFull"}
