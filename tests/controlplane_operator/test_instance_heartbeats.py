"""Doubts about an instance of mcm: raised only after its Lease was unchanged for the Lease duration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.registrations.heartbeats import InstanceHeartbeats
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import Client, Conflict, NotFound

_SINCE = "2026-11-27T12:00:00Z"


class World:
    """A registration with an instance, and the Lease of the instance in its control plane."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.lease: Any = {"holderIdentity": "mcm-1", "renewTime": "0", "leaseDurationSeconds": 120}
        self.stores = Stores()
        self.doubts: list[str] = []
        self.conflict = False
        self._version = 0
        status = SimpleNamespace(doubt_instance=self._doubt)
        context = cast("OperatorContext", SimpleNamespace(stores=self.stores, status=status))
        self.heartbeats = InstanceHeartbeats(context, now=lambda: self.now)
        self.client = cast("Client", SimpleNamespace(get=self._get))
        self.say("True")

    def say(self, status: str, *, since: str = _SINCE, annotations: dict[str, str] | None = None) -> None:
        self._version += 1
        reason = "InstanceRunning" if status == "True" else "Unready"
        condition = {"type": "Running", "status": status, "reason": reason, "message": "", "lastTransitionTime": since}
        metadata = {"name": "acme", "uid": "r", "resourceVersion": str(self._version), "annotations": annotations or {}}
        instance = {"controlPlaneUID": "u", "services": ["Controllers"]}
        served = {"controlPlaneUID": "u", "instance": instance, "conditions": [condition]}
        self.stores.registrations.apply({"metadata": metadata, "spec": {}, "status": served})

    async def _get(self, *_: object, **__: object) -> Any:
        if self.lease is None:
            raise NotFound(404, "NotFound", "no Lease")
        return {"spec": self.lease}

    async def _doubt(self, *_: object, message: str) -> None:
        if self.conflict:
            raise Conflict(409, "Conflict", "changed")
        self.doubts.append(message)

    async def look(self, *, after: float = 0.0) -> int:
        """Observe the Lease after this number of seconds. Returns the number of doubts so far."""
        self.now += after
        if self.heartbeats.concerns("u"):
            await self.heartbeats.observe("u", self.client)
        return len(self.doubts)


@pytest.fixture
def world() -> World:
    return World()


async def test_lease_that_is_renewed_raises_no_doubt(world: World) -> None:
    for number in range(30):
        world.lease = {**world.lease, "renewTime": str(number)}
        assert await world.look(after=100.0) == 0


@pytest.mark.parametrize("gone", [False, True], ids=["stays", "deleted"])
async def test_lease_that_is_not_renewed_raises_a_doubt_after_its_duration(world: World, *, gone: bool) -> None:
    await world.look()
    world.lease = None if gone else world.lease
    assert await world.look(after=20.0) == 0
    assert await world.look(after=90.0) == 0
    assert await world.look(after=35.0) == 1
    assert "kube-system/kube-controller-manager" in world.doubts[0]
    assert "see whether mcm runs" in world.doubts[0]


async def test_first_look_of_a_new_operator_raises_no_doubt(world: World) -> None:
    world.lease = {**world.lease, "renewTime": "2020-01-01T00:00:00Z"}
    assert await world.look(after=10_000.0) == 0


async def test_status_change_by_mcm_counts_as_heartbeat(world: World) -> None:
    await world.look()
    world.say("True", since="2026-11-27T12:02:00Z")
    assert await world.look(after=130.0) == 0
    assert await world.look(after=130.0) == 1


@pytest.mark.parametrize("spec", [None, [], {"leaseDurationSeconds": 1}, {"leaseDurationSeconds": "x"}])
async def test_invalid_or_short_lease_hastens_no_doubt(world: World, spec: Any) -> None:
    world.lease = spec if spec is not None else {}
    await world.look()
    assert await world.look(after=119.0) == 0
    assert await world.look(after=2.0) == 1


async def test_lease_of_any_length_delays_a_doubt_by_ten_minutes_at_most(world: World) -> None:
    world.lease = {**world.lease, "leaseDurationSeconds": 10**9}
    await world.look()
    assert await world.look(after=599.0) == 0
    assert await world.look(after=2.0) == 1


async def test_stopped_instance_and_paused_registration_raise_no_doubt(world: World) -> None:
    world.say("False")
    await world.look()
    assert await world.look(after=1000.0) == 0
    world.say("True", annotations={"controlplane.kplane.dev/paused": "true"})
    await world.look()
    assert await world.look(after=1000.0) == 0


async def test_conflict_on_status_write_is_retried_at_next_look(world: World) -> None:
    await world.look()
    world.conflict = True
    assert await world.look(after=130.0) == 0
    world.conflict = False
    assert await world.look(after=20.0) == 1
