"""Metrics of the operator. The series of a control plane end with the control plane."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kplane.api import ControlPlane
from kplane.controlplane_operator.expiry_metrics import ExpiryMetrics
from kplane.controlplane_operator.metrics import Inventory, Metrics
from kplane.controlplane_operator.watch.stores import Stores

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "controlplane_operator" / "kplane" / "controlplane_operator"


def control_plane(name: str, *, version: int = 1) -> dict[str, Any]:
    created = "2026-01-01T00:00:00Z"
    metadata = {"name": name, "uid": name, "resourceVersion": str(version), "creationTimestamp": created}
    return {"metadata": metadata, "spec": {}}


def secret(name: str, kind: str, *, ends: str) -> dict[str, Any]:
    metadata = {
        "name": f"controlplane-{name}-{kind}",
        "namespace": f"kplane-cp-{name}",
        "resourceVersion": "1",
        "annotations": {"controlplane.kplane.dev/expires-at": ends},
    }
    return {"metadata": metadata}


def samples(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["control_plane"], sample.labels["secret"]): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "kplane_credentials_expiry_seconds"
    }


def test_expiry_of_published_secrets_ends_with_control_plane() -> None:
    stores, registry = Stores(), CollectorRegistry()
    registry.register(ExpiryMetrics(stores))
    now = datetime.now(UTC)
    for name in ("a", "b"):
        stores.control_planes.apply(control_plane(name))
        stores.secrets.apply(secret(name, "kubeconfig", ends=(now + timedelta(hours=1)).isoformat()))
        stores.secrets.apply(secret(name, "controllers", ends=(now - timedelta(hours=1)).isoformat()))
    expiries = samples(registry)
    assert set(expiries) == {(name, kind) for name in ("a", "b") for kind in ("kubeconfig", "controllers")}
    assert expiries["a", "kubeconfig"] == pytest.approx(3600, abs=5)
    assert expiries["b", "controllers"] == pytest.approx(-3600, abs=5)
    stores.control_planes.remove(control_plane("a", version=2))
    assert {name for name, _ in samples(registry)} == {"b"}


def test_expiry_metrics_skip_invalid_annotations() -> None:
    stores, registry = Stores(), CollectorRegistry()
    registry.register(ExpiryMetrics(stores))
    for name, ends in (("a", "soon"), ("b", "2099-01-01T00:00:00"), ("c", "2099-01-01T00:00:00+00:00")):
        stores.control_planes.apply(control_plane(name))
        stores.secrets.apply(secret(name, "kubeconfig", ends=ends))
    assert set(samples(registry)) == {("c", "kubeconfig")}


def test_bootstrap_and_key_metrics_have_no_control_plane_label() -> None:
    metrics = Metrics()
    created = (datetime.now(UTC) - timedelta(seconds=4)).isoformat()
    acme = {"metadata": {"name": "acme", "creationTimestamp": created}, "spec": {}}
    metrics.published(ControlPlane.model_validate(acme))
    metrics.keys_deleted(186)
    metrics.keys_deleted(14)
    shown = generate_latest(metrics.registry).decode()
    assert 'kplane_bootstrap_seconds_bucket{le="3.0"} 0.0' in shown
    assert 'kplane_bootstrap_seconds_bucket{le="7.5"} 1.0' in shown
    assert "kplane_deleted_keys_total 200.0" in shown
    assert "acme" not in shown


def test_migration_started_metric_exists_only_before_home_changes() -> None:
    """A planned migration, and a migration that has changed the home, have no series."""
    stores, metrics = Stores(), Metrics()
    metrics.registry.register(Inventory(stores.control_planes))
    steps = {"planned": None, "moves": "Copying", "cut": "Cutting", "moved": "Retaining", "ended": "Completed"}
    for name, step in steps.items():
        migration: dict[str, Any] = {"plan": {}}
        if step is not None:
            migration |= {"step": step, "startedTime": "2026-11-23T12:00:00Z"}
        stores.control_planes.apply({**control_plane(name), "status": {"migration": migration}})
    started = datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp()
    (family,) = (item for item in metrics.registry.collect() if item.name.startswith("kplane_migration_started"))
    assert {item.labels["control_plane"]: item.value for item in family.samples} == {"moves": started, "cut": started}
