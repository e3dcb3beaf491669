"""Series that the programs expose, as read from the programs."""

from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kplane.api.reasons import Reason
from kplane.controlplane_operator.expiry_metrics import ExpiryMetrics
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANE_SNAPSHOTS, CONTROL_PLANES
from kplane.controlplane_operator.metrics import Inventory
from kplane.controlplane_operator.metrics import Metrics as OperatorMetrics
from kplane.controlplane_operator.snapshots.metrics import SnapshotMetrics
from kplane.controlplane_operator.storage_metrics import StorageMetrics
from kplane.controlplane_operator.watch.cache import Store
from kplane.embedded.handle import Handle
from kplane.gateway.status import Collected
from kplane.mcm.describe.controllers import PROGRAM
from kplane.mcm.instance.lifecycle import Origin, Target
from kplane.mcm.serving.metric_allowlist import SERIES
from kplane.mcm.serving.metrics import Metrics as McmMetrics
from kplane.mcm.serving.overview import ClusterSummary, Overview, State
from kplane.mcm.serving.scrape import Scraper
from kplane.provider import ApiError, Client, ClusterConfig, Manager, Request, Resource, controller
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.controllers.sources import Channel
from kplane.provider.serving.metrics import ManagerMetrics, process_families, render_families

Series = dict[str, set[str]]
"""Labels by name of the metric."""

FROM_PROMETHEUS = {"job", "pod", "namespace"}
"""Labels that a ServiceMonitor adds."""

KUBE_STATE_METRICS: Series = {"kube_job_status_failed": {"namespace", "job_name", "reason"}}
"""Series of kube-state-metrics, from its documentation."""

_POLICIES = ("Fail", "Ignore")
_WEBHOOKS = Resource(
    "admissionregistration.k8s.io/v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    namespaced=False,
)
_BY_WEBHOOKS = {"apiserver_admission_webhook_rejection_count", "apiserver_admission_webhook_fail_open_count"}
_UNSEEN: Series = {"up": set(), "apiserver_audit_error_total": {"plugin"}}
"""Series of Prometheus, and of an API server that lost an audit event, from their documentation."""


def read(text: str) -> Series:
    series: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series.setdefault(sample.name, set()).update(sample.labels)
    return series


async def operator_series() -> Series:
    metrics = OperatorMetrics()
    moving = Store(CONTROL_PLANES)
    migration = {"step": "Copying", "startedTime": "2026-01-01T00:00:00Z"}
    metadata = {"name": "a", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    moving.apply({"metadata": metadata, "status": {"migration": migration}})
    metrics.registry.register(Inventory(moving))
    metrics.elected("kplane-operator", leading=lambda: True)
    metrics.condition_failed("controlplane", reason=Reason.INTERNAL_ERROR)
    expiring = {"metadata": {"annotations": {"controlplane.kplane.dev/expires-at": "2026-01-01T00:00:00+00:00"}}}
    storage = {"keys": 1, "bytes": 1, "quotaBytes": 1}
    control_plane = {
        "metadata": {"name": "a", "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"classRef": {"name": "a"}},
        "status": {"storage": storage, "endpoint": "https://a"},
    }
    settings = {"schedule": "0 0 * * *"}
    classes = Store(CONTROL_PLANE_CLASSES)
    classes.apply({"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {"snapshots": settings}})
    snapshots = Store(CONTROL_PLANE_SNAPSHOTS, indexers={"scheduled for": lambda _: ()})
    stores: Any = SimpleNamespace(control_planes=[control_plane], secrets={}, classes=classes, snapshots=snapshots)
    stores.secrets = Mock()
    stores.secrets.get.return_value = expiring
    metrics.registry.register(ExpiryMetrics(stores))
    metrics.registry.register(StorageMetrics(stores, usage=lambda _: None))
    metrics.registry.register(SnapshotMetrics(stores))

    async def reconcile(_: Request) -> None:
        """Reconcile nothing: a controller has all its series before its first reconcile."""

    manager = Manager(None, name="test")
    controller(manager).named("controlplane").watches_raw(Channel()).build(reconcile)
    families = [*ManagerMetrics(manager, cluster_labels=False).collect(), *process_families()]
    return read(generate_latest(metrics.registry).decode()) | read(render_families(families).decode())


async def mcm_series() -> Series:
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
    return read((await McmMetrics(overview, scraper=scraper).render()).decode())


def gateway_series() -> Series:
    route: Any = SimpleNamespace(key="a", cluster_path="a", upstream=object())
    stats = ("2xx", "total", "active", "pending_overflow")
    numbers = {f"cluster.a.upstream_rq_{stat}": 1 for stat in stats} | {"cluster.a.upstream_cx_connect_fail": 1}
    controller: Any = SimpleNamespace(routes=[route])
    registry = CollectorRegistry()
    registry.register(Collected(controller, numbers, waiting=1, held=1))
    return read(generate_latest(registry).decode())


async def api_server_series(api_server: Handle, eventually: Any) -> Series:
    """Let webhooks fail. Return the series of the API server with the label that its ServiceMonitor adds."""
    name, labels = "test-series", {"test": "series"}
    refused, ignored = ({"name": f"{policy.lower()}.example.org", "failurePolicy": policy} for policy in _POLICIES)
    common = {
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}],
        "objectSelector": {"matchLabels": labels},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    body = {"metadata": {"name": name, "namespace": "default", "labels": labels}}
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client:
        webhooks = [{**webhook, **common} for webhook in (refused, ignored)]
        await client.create(_WEBHOOKS, {"metadata": {"name": name}, "webhooks": webhooks})

        async def read_all() -> Series:
            with contextlib.suppress(ApiError):
                await client.create(CONFIG_MAPS, body)
                await client.delete(CONFIG_MAPS, name, namespace="default")
            text = await api_server.kubectl.run("get", "--raw=/metrics")
            # The parser would add _total to the names of all counters. Prometheus does not.
            return read(text.replace(" counter\n", " untyped\n"))

        try:
            series_by_name: Series = await eventually(read_all, lambda series: series.keys() >= _BY_WEBHOOKS)
        finally:
            await client.delete(_WEBHOOKS, name)
    return {name: {*labels, "control_plane"} for name, labels in (series_by_name | _UNSEEN).items()}


async def every_series(etcd: Any, api_server: Handle, eventually: Any) -> Series:
    """Merge the series of operator, mcm, gateway, a running etcd and API server, and kube-state-metrics."""
    merged: Series = {}
    sources = await operator_series(), await mcm_series(), read(await eventually(etcd.metrics, timeout=120))
    served = await api_server_series(api_server, eventually)
    for name, labels in (
        item for source in (*sources, gateway_series(), served, KUBE_STATE_METRICS) for item in source.items()
    ):
        merged.setdefault(name, set()).update(labels)
    return merged
