"""Conditions of a start: their order, and the condition that is missing."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from kplane.mcm.errors import NotAnnounced
from kplane.mcm.instance.start_permit import Condition, StartPermit
from kplane.mcm.instance.state import BlockingReason
from kplane.mcm.instance.tenant_lease import TenantLease
from kplane.mcm.instance.turns import StartBudget, Turn
from kplane.mcm.reasons import Reason
from kplane.provider import Cluster, ClusterConfig
from kplane.provider.errors import ClusterNotOwned
from kplane.workloads import RuntimeFailure

CONFIG = ClusterConfig(server="https://127.0.0.1:1", token="t")
HELD = BlockingReason(Reason.FOREIGN_CONTROLLER_MANAGER, "another kube-controller-manager works on it")


class World:
    """A permit whose conditions are fakes. A condition of `missing` cannot be acquired."""

    def __init__(self, *, grace: float = 90.0) -> None:
        self.missing: set[Condition] = set()
        self.acquired: list[Condition] = []
        self.owned_seconds: float | None = None
        self.seconds_left = 120.0
        self.refusal = ""
        self.budget = StartBudget(at_once=1, longest_seconds=0.01, stagger_seconds=0.0)
        self.permit = StartPermit(
            Cluster("a", config=CONFIG),
            owned_seconds=self._owned,
            lease=cast("TenantLease", self),
            turn=Turn(self.budget),
            watchdog=self._watchdog,
            announcement=self._announcement,
            timeout_seconds=5.0,
            grace_seconds=grace,
        )

    async def start(self) -> BlockingReason | None:
        """Acquire all conditions, as a start gate does. Return why one is missing."""
        if (blocking := await self.permit.renew(CONFIG, seconds=45.0)) is not None:
            return blocking
        async with self.permit.acquired(CONFIG) as blocking:
            self.permit.turn.release()
            return blocking

    async def acquire(self, *_: object, **__: object) -> BlockingReason | None:
        self.acquired.append(Condition.LEASE)
        return HELD if Condition.LEASE in self.missing else None

    def _owned(self, name: str) -> float | None:
        if Condition.SHARD in self.missing:
            raise ClusterNotOwned(f"cluster {name} is another's")
        return self.owned_seconds

    async def _watchdog(self) -> None:
        self.acquired.append(Condition.WATCHDOG)
        if Condition.WATCHDOG in self.missing:
            raise RuntimeFailure("there is no watchdog")

    async def _announcement(self) -> None:
        self.acquired.append(Condition.ANNOUNCEMENT)
        if Condition.ANNOUNCEMENT in self.missing:
            raise NotAnnounced("the management API does not answer")


ACQUIRED = [Condition.LEASE, Condition.WATCHDOG, Condition.ANNOUNCEMENT]


async def test_permit_acquires_its_conditions_in_order() -> None:
    world = World()
    assert await world.start() is None
    assert (world.acquired, world.permit.missing) == (ACQUIRED, None)


@pytest.mark.parametrize(
    ("missing", "reason", "message", "acquired"),
    [
        (Condition.SHARD, Reason.CANNOT_START, "another mcm works on it: cluster a is another's", 0),
        (Condition.LEASE, *HELD, 1),
        (Condition.WATCHDOG, Reason.CANNOT_START, "there is no watchdog", 2),
        (Condition.ANNOUNCEMENT, Reason.CANNOT_START, "the management API does not answer", 3),
    ],
)
async def test_permit_names_its_missing_condition(
    missing: Condition, reason: Reason, message: str, acquired: int
) -> None:
    world = World()
    world.missing.add(missing)
    assert await world.start() == BlockingReason(reason, message)
    assert world.permit.missing is missing
    # No condition after the missing condition is acquired.
    assert world.acquired == ACQUIRED[:acquired]
    world.missing.clear()
    assert await world.start() is None
    assert world.permit.missing is None


async def test_permit_names_the_turn_while_it_waits_for_it(eventually: Any) -> None:
    world, over = World(), asyncio.Event()
    async with world.budget.turn(over=over):
        start = asyncio.create_task(world.start())
        await eventually(lambda: world.permit.missing is Condition.TURN)
        assert world.acquired == [Condition.LEASE]
        over.set()
    assert await start is None


async def test_permit_renews_an_old_lease_in_its_turn() -> None:
    """The Lease may be lost during a long wait for the turn."""
    world = World(grace=0.0)
    assert await world.permit.renew(CONFIG, seconds=1.0) is None
    world.missing.add(Condition.LEASE)
    async with world.permit.acquired(CONFIG) as blocking:
        world.permit.turn.release()
    assert (blocking, world.permit.missing) == (HELD, Condition.LEASE)
    assert Condition.WATCHDOG not in world.acquired


@pytest.mark.parametrize(("owned", "held", "left"), [(None, 90.0, 90.0), (30.0, 90.0, 30.0), (30.0, 0.0, 0.0)])
async def test_permit_expires_with_its_first_lease(owned: float | None, held: float, left: float) -> None:
    world = World()
    world.owned_seconds, world.seconds_left = owned, held
    assert world.permit.seconds_left == left
    world.missing.add(Condition.SHARD)
    assert world.permit.seconds_left == 0.0
