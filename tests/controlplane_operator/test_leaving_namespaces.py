"""Namespaces that stay Terminating: the condition names the namespace, the start time and the cause."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kplane.api import ControlPlane
from kplane.api.reasons import Reason
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.namespaces import ManagementNamespaces
from kplane.controlplane_operator.controlplanes.retained_data import owned_metadata
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.leaving import describe_leaving
from kplane.controlplane_operator.watch.stores import Stores

SINCE = "2026-11-27T10:00:05Z"
SOON, LATER = datetime(2026, 11, 27, 10, 0, 30, tzinfo=UTC), datetime(2026, 11, 27, 10, 5, tzinfo=UTC)
# Conditions as the namespace controller of Kubernetes 1.36 writes them.
DISCOVERY = (
    "NamespaceDeletionDiscoveryFailure",
    "Discovery failed for some groups, 1 failing: metrics.k8s.io/v1beta1: stale GroupVersion discovery",
)
CONTENT = ("NamespaceContentRemaining", "Some resources are remaining: configmaps. has 1 resource instances")
FINALIZERS = (
    "NamespaceFinalizersRemaining",
    "Some content in the namespace has finalizers remaining: test.kplane.dev/hold in 1 resource instances",
)
DONE = ("NamespaceDeletionContentFailure", "All content successfully deleted, may be waiting on finalization")


def leaving(*told: tuple[str, str], metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    conditions = [{"type": kind, "status": "False" if kind == DONE[0] else "True", "message": m} for kind, m in told]
    common = {"name": "kplane-cp-acme", "uid": "of-the-namespace", "resourceVersion": "1", "deletionTimestamp": SINCE}
    return {
        "metadata": common | {name: value for name, value in (metadata or {}).items() if name != "name"},
        "status": {"phase": "Terminating", "conditions": conditions},
    }


def test_description_names_finalizers_contents_and_remedy() -> None:
    description = describe_leaving(leaving(CONTENT, FINALIZERS, DONE), now=SOON)
    assert description.startswith("namespace kplane-cp-acme is being deleted since 2026-11-27 10:00:05 UTC: ")
    assert "test.kplane.dev/hold in 1 resource instances" in description
    assert "configmaps. has 1 resource instances" in description
    assert description.endswith("; let the programs of these finalizers end their work, or remove the finalizers")
    assert "All content successfully deleted" not in description


def test_description_names_api_service_that_is_down() -> None:
    description = describe_leaving(leaving(DISCOVERY), now=SOON)
    assert "metrics.k8s.io/v1beta1: stale GroupVersion discovery" in description
    assert description.endswith("kubectl get apiservices")


def test_description_without_conditions_names_controller_after_minute() -> None:
    assert describe_leaving(leaving(), now=SOON).endswith("since 2026-11-27 10:00:05 UTC")
    assert "kube-controller-manager of the management cluster" in describe_leaving(leaving(), now=LATER)


def test_description_is_stable_and_shorter_than_1024_characters() -> None:
    held = leaving((FINALIZERS[0], "x" * 5000), CONTENT)
    assert describe_leaving(held, now=SOON) == describe_leaving(held, now=LATER)
    assert len(describe_leaving(held, now=LATER)) < 1024


class Cluster:
    """Fake management cluster with a single namespace."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace

    async def get(self, _: Any, __: str) -> dict[str, Any]:
        return self.namespace


def control_plane(uid: str, **spec: Any) -> ControlPlane:
    return ControlPlane.model_validate({"metadata": {"name": "acme", "uid": uid}, "spec": spec})


def namespaces(namespace: dict[str, Any]) -> ManagementNamespaces:
    stores = Stores()
    stores.namespaces.apply(namespace)
    context = SimpleNamespace(client=Cluster(namespace), stores=stores, namespace="kplane-system")
    return ManagementNamespaces(cast("OperatorContext", context))


async def take_over(control_plane: ControlPlane, *, former: str) -> None:
    raise AssertionError(f"{control_plane.name} takes the data of {former} over")


async def no_volume(_: ControlPlane) -> str | None:
    return None


async def test_ensure_reports_cause_while_earlier_namespace_terminates() -> None:
    record = owned_metadata(control_plane("earlier"))
    annotations = {name: value for name, value in record["annotations"].items() if value is not None}
    labels = {"controlplane.kplane.dev/name": "acme"}
    held = leaving(FINALIZERS, metadata={"labels": labels, "annotations": annotations})
    with pytest.raises(ConditionError, match=r"test\.kplane\.dev/hold") as failure:
        await namespaces(held).ensure(control_plane("later"), take_over=take_over, volume=no_volume)
    assert failure.value.reason is Reason.PROVISIONING
    assert "kplane-cp-acme is being deleted since 2026-11-27 10:00:05 UTC" in failure.value.message


async def test_remove_reports_cause_while_namespace_terminates() -> None:
    removed = control_plane("1", endpointRef={"name": "acme"})
    owner = {"apiVersion": "v1", "kind": "ControlPlane", "name": "acme", "uid": "1", "controller": True}
    labels = {"controlplane.kplane.dev/name": "acme"}
    held = leaving(DISCOVERY, metadata={"labels": labels, "ownerReferences": [owner]})
    with pytest.raises(ConditionError, match=r"metrics\.k8s\.io/v1beta1") as failure:
        await namespaces(held).remove(removed)
    assert failure.value.reason is Reason.DELETING
    assert "since 2026-11-27 10:00:05 UTC" in failure.value.message
