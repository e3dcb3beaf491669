"""Claims of adopted clusters. Precedence: the control plane that kplane runs, then the recorded, then the older."""

from __future__ import annotations

from typing import Any

import pytest

from kplane.api import ControlPlane
from kplane.controlplane_operator.backends.cluster_claims import ClusterClaims
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.stores import Stores

_AT = "https://10.0.0.1:6443"


class World:
    def __init__(self) -> None:
        self.stores = Stores()
        self.claims = ClusterClaims(self.stores)
        self._version = 0

    def stored(self, name: str, *, cluster: str | None = None, day: int = 1, managed: bool = False) -> ControlPlane:
        """Store a control plane whose uid is its name."""
        self._version += 1
        metadata = {
            "name": name,
            "uid": name,
            "resourceVersion": str(self._version),
            "creationTimestamp": f"2026-01-{day:02}T00:00:00Z",
        }
        condition = {
            "type": "Managed",
            "status": "True" if managed else "False",
            "reason": "Any",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        status: dict[str, Any] = {"conditions": [condition]}
        if cluster is not None:
            status["clusterUID"] = cluster
        spec = {"mode": "Dedicated", **({} if managed else {"endpointRef": {"name": name}})}
        obj = {"metadata": metadata, "spec": spec, "status": status}
        self.stores.control_planes.apply(obj)
        return ControlPlane.model_validate(obj)

    def take(self, control_plane: ControlPlane, cluster: str) -> None:
        self.claims.take(control_plane, cluster_uid=cluster, address=_AT)

    def refused(self, control_plane: ControlPlane, cluster: str, *, reason: str, message: str) -> None:
        with pytest.raises(ConditionError, match=message) as refusal:
            self.take(control_plane, cluster)
        assert refusal.value.reason == reason


@pytest.fixture
def world() -> World:
    return World()


def test_take_refuses_granted_cluster_before_it_is_recorded(world: World) -> None:
    first, older = world.stored("first", day=2), world.stored("older", day=1)
    world.take(first, "x")
    world.take(first, "x")
    world.refused(older, "x", reason="EndpointInUse", message="control plane first has adopted this cluster")
    world.take(older, "y")


def test_take_refuses_recorded_cluster_after_restart(world: World) -> None:
    world.stored("first", cluster="x", day=2)
    older = world.stored("older", day=1)
    world.refused(older, "x", reason="EndpointInUse", message="control plane first has adopted this cluster")


def test_take_grants_cluster_to_older_of_two_that_recorded_it(world: World) -> None:
    """Such claims exist after a restore of two objects from two versions of the operator."""
    older, younger = world.stored("older", cluster="x", day=1), world.stored("younger", cluster="x", day=2)
    world.take(older, "x")
    world.refused(younger, "x", reason="EndpointInUse", message="control plane older has adopted this cluster")


def test_take_refuses_cluster_that_kplane_runs_even_if_recorded(world: World) -> None:
    adopted = world.stored("adopted", cluster="x", day=1)
    world.stored("own", cluster="x", day=9, managed=True)
    world.refused(adopted, "x", reason="EndpointInUse", message="kplane runs it for control plane own;")


def test_take_refuses_cluster_other_than_the_recorded(world: World) -> None:
    adopted = world.stored("adopted", cluster="x")
    world.refused(adopted, "y", reason="ClusterChanged", message="has uid y, and the adopted cluster has x; nothing")
    world.take(world.stored("other"), "y")


def test_release_frees_granted_cluster(world: World) -> None:
    first, second = world.stored("first"), world.stored("second")
    world.take(first, "x")
    world.claims.release("first")
    world.take(second, "x")
    world.refused(first, "x", reason="EndpointInUse", message="control plane second has adopted this cluster")
