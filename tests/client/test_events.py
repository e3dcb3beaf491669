"""Events of a control plane: whose they are, and in which order."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from kplane.api import ControlPlane
from kplane.client.events import ControlPlaneEvents, KubernetesEvent


def event(kind: str, name: str, *, at: str, namespace: str = "default", **more: Any) -> dict[str, Any]:
    ours = kind.startswith("ControlPlane")
    about = {"apiVersion": "controlplane.kplane.dev/v1alpha1" if ours else "v1", "kind": kind, "name": name}
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
            return SimpleNamespace(items=[each for each in self.events if each["metadata"]["namespace"] == namespace])
        return SimpleNamespace(items=[{"metadata": {"name": name}} for name in self.referring.get(resource.kind, [])])


async def test_all_that_belongs_to_it_comes_in_order() -> None:
    cluster = Cluster(
        event("ControlPlane", "acme", at="03"),
        event("ControlPlane", "globex", at="01"),
        event("ControlPlaneRegistration", "nodes", at="02"),
        event("ControlPlaneRegistration", "other", at="02"),
        event("ControlPlaneEndpoint", "acme", at="05"),
        event("ControlPlaneSnapshot", "acme-1", at="04"),
        event("Pod", "kube-apiserver-1", at="06", namespace="kplane-cp-acme"),
        # Another kind of another group, of the same name.
        event("ControlPlane", "acme", at="07")
        | {"involvedObject": {"apiVersion": "x/v1", "kind": "ControlPlane", "name": "acme"}},
        referring={"ControlPlaneRegistration": ["nodes"], "ControlPlaneSnapshot": ["acme-1"]},
    )
    acme = ControlPlane.model_validate({"metadata": {"name": "acme"}, "spec": {}})
    found = await ControlPlaneEvents(cluster, acme).read()  # type: ignore[arg-type]
    assert [each.about for each in found] == [
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
def test_both_forms_of_events_are_read(fields: dict[str, Any], last: int, count: int) -> None:
    found = KubernetesEvent.read({"metadata": {"creationTimestamp": moment("00")}, **fields})
    assert (found.last, found.count) == (datetime(2026, 11, 26, 10, 0, last, tzinfo=UTC), count)
