"""Events of a control plane: related objects and order."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from kplane.api import ControlPlane
from kplane.client.events import ControlPlaneEvents, KubernetesEvent


def event(kind: str, name: str, *, at: str, namespace: str = "default", **more: Any) -> dict[str, Any]:
    is_kplane = kind.startswith("ControlPlane")
    about = {"apiVersion": "controlplane.kplane.dev/v1alpha1" if is_kplane else "v1", "kind": kind, "name": name}
    metadata = {"name": f"{name}.{at}", "namespace": namespace, "resourceVersion": at}
    return {"metadata": metadata, "involvedObject": about, "reason": f"At{at}", "lastTimestamp": moment(at), **more}


def moment(at: str) -> str:
    return f"2026-11-26T10:00:{at}Z"


class Cluster:
    """Answers lists of Events and of objects that refer to a control plane."""

    def __init__(self, *events: dict[str, Any], referring: dict[str, list[str]]) -> None:
        self.events = events
        self.referring = referring

    async def list(self, resource: Any, *, namespace: str | None = None, **_: Any) -> Any:
        if resource.kind == "Event":
            return SimpleNamespace(items=[item for item in self.events if item["metadata"]["namespace"] == namespace])
        return SimpleNamespace(items=[{"metadata": {"name": name}} for name in self.referring.get(resource.kind, [])])


async def test_events_of_related_objects_are_read_in_order() -> None:
    cluster = Cluster(
        event("ControlPlane", "acme", at="03"),
        event("ControlPlane", "globex", at="01"),
        event("ControlPlaneRegistration", "nodes", at="02"),
        event("ControlPlaneRegistration", "other", at="02"),
        event("ControlPlaneEndpoint", "acme", at="05"),
        event("ControlPlaneSnapshot", "acme-1", at="04"),
        event("Pod", "kube-apiserver-1", at="06", namespace="kplane-cp-acme"),
        # A kind of a different API group with the same kind and name.
        event("ControlPlane", "acme", at="07")
        | {"involvedObject": {"apiVersion": "x/v1", "kind": "ControlPlane", "name": "acme"}},
        referring={"ControlPlaneRegistration": ["nodes"], "ControlPlaneSnapshot": ["acme-1"]},
    )
    acme = ControlPlane.model_validate({"metadata": {"name": "acme"}, "spec": {}})
    events = await ControlPlaneEvents(cluster, acme).read()  # type: ignore[arg-type]
    assert [item.about for item in events] == [
        "ControlPlaneRegistration/nodes",
        "ControlPlane/acme",
        "ControlPlaneSnapshot/acme-1",
        "ControlPlaneEndpoint/acme",
        "Pod/kube-apiserver-1",
    ]


@pytest.mark.parametrize(
    ("fields", "last", "count"),
    [
        ({"lastTimestamp": moment("02"), "firstTimestamp": moment("01"), "count": 3}, 2, 3),
        ({"lastTimestamp": None, "eventTime": moment("04")}, 4, 1),
        ({"eventTime": moment("04"), "series": {"count": 7, "lastObservedTime": moment("09")}}, 9, 7),
        ({"lastTimestamp": None}, 0, 1),
    ],
)
def test_times_of_both_event_formats_are_read(fields: dict[str, Any], last: int, count: int) -> None:
    result = KubernetesEvent.read({"metadata": {"creationTimestamp": moment("00")}, **fields})
    assert (result.last, result.count) == (datetime(2026, 11, 26, 10, 0, last, tzinfo=UTC), count)
