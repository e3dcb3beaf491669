"""Steps of the demo fail if their result does not prove their claim."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from kplane.api import ControlPlane, ControlPlaneMode, ControlPlanePhase
from kplane.cli.demo import steps
from kplane.cli.demo.display import Proof
from kplane.cli.demo.steps import DESTROYED, MOVED, STAYS, Demo
from kplane.cli.errors import DemoFailed

COUNT = 6
NAMES = (STAYS, MOVED, DESTROYED, f"{DESTROYED}-dev", "tenant-001", "tenant-002")


class Tenant:
    """Stands for a control plane that answers at once."""

    def __init__(self, name: str) -> None:
        self.name = self.cluster_path = name
        self.config = None

    async def ask(self) -> float:
        return 0.5


class ControlPlanes:
    """Stands for the control planes of the demo, each with the phase or the status given."""

    def __init__(self, phases: Mapping[str, str], **status: Any) -> None:
        self.phases, self.status = phases, status
        self.deleted: list[str] = []

    def _control_plane(self, name: str) -> ControlPlane:
        status = {"phase": self.phases.get(name, "Hibernated"), "clusterPath": name, **self.status}
        return ControlPlane.model_validate({"metadata": {"name": name}, "spec": {}, "status": status})

    async def list(self) -> list[ControlPlane]:
        return [self._control_plane(name) for name in NAMES]

    async def get(self, name: str) -> ControlPlane:
        return self._control_plane(name)

    async def wait(self, name: str, *args: object, **options: object) -> ControlPlane:
        return self._control_plane(name)

    async def move(self, name: str, *, mode: ControlPlaneMode) -> None:
        pass

    async def delete(self, name: str, **options: object) -> None:
        self.deleted.append(name)


def demo(control_planes: ControlPlanes) -> Demo:
    handle = SimpleNamespace(gateway_url="https://127.0.0.1:1", tenants_etcd=None, directory=None)
    tenants = {name: cast("Any", Tenant(name)) for name in (STAYS, MOVED, DESTROYED)}
    return Demo(cast("Any", handle), cast("Any", control_planes), COUNT, tenants)


@pytest.fixture(autouse=True)
def tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_one(handle: object, control_planes: object, name: str) -> Tenant:
        return Tenant(name)

    monkeypatch.setattr(steps, "Tenant", SimpleNamespace(open=open_one))


AWAKE = {name: str(ControlPlanePhase.READY) for name in (STAYS, MOVED, DESTROYED)}


async def test_wake_step_fails_if_other_control_planes_wake() -> None:
    proof = Proof("")
    await steps.wake(demo(ControlPlanes(AWAKE)), proof)
    assert "; 3 others still sleep" in proof.details[0]
    with pytest.raises(DemoFailed, match="2 of 3 still sleep"):
        await steps.wake(demo(ControlPlanes(AWAKE | {"tenant-002": "Ready"})), proof)


@pytest.mark.parametrize("empty", [None, STAYS, f"{DESTROYED}-dev"])
async def test_destroy_step_fails_if_neighbours_have_no_keys(
    empty: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    control_planes, proof = ControlPlanes({}), Proof("")

    async def stored(etcd: object, path: str) -> dict[str, str]:
        return {} if path == empty else {f"/clusters/{path}/a": "1"}

    async def count_keys(etcd: object, path: str) -> int:
        return 0 if path in control_planes.deleted else 7

    monkeypatch.setattr(steps, "stored", stored)
    monkeypatch.setattr(steps, "count_keys", count_keys)
    if empty is None:
        await steps.destroy(demo(control_planes), proof)
        assert proof.sentence == "initech is deleted: 7 keys → 0, neighbours untouched"
        assert proof.details[0].startswith("all 3 keys of ")
    else:
        with pytest.raises(DemoFailed, match=f"{empty} held no keys before"):
            await steps.destroy(demo(control_planes), proof)
        assert control_planes.deleted == []


class Ledger:
    """Stands for a ledger whose writes all arrive."""

    acknowledged, slowest_seconds = 9, 0.1

    def __init__(self, config: object) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def fill(self, objects: int) -> None:
        pass

    def writing(self) -> Ledger:
        return self

    async def verify(self, name: str) -> None:
        pass


@pytest.mark.parametrize(
    ("mode", "keys", "problem"),
    [
        ("Dedicated", 7, None),
        ("Virtual", 7, "it lives in Virtual, not in an etcd of its own"),
        ("Dedicated", 0, "no keys were written in its new home"),
    ],
)
async def test_move_step_fails_without_dedicated_home_and_keys(
    mode: str, keys: int, problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def done(*args: object, **options: object) -> None:
        pass

    for name, replaced in {"Ledger": Ledger, "_instance": done, "_follow": done}.items():
        monkeypatch.setattr(steps, name, replaced)
    places = {"from": {"mode": "Virtual"}, "to": {"mode": "Dedicated", "slot": 1}}
    migration = {**places, "step": "Retaining", "keys": keys, "holdMilliseconds": 20}
    proof = Proof("")
    subject = demo(ControlPlanes(AWAKE, home={"mode": mode}, migration=migration))
    if problem is None:
        await steps.move(subject, proof)
        assert ": 7 keys there after " in proof.sentence
    else:
        with pytest.raises(DemoFailed, match=problem):
            await steps.move(subject, proof)
