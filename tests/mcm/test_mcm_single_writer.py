"""Two instances never work on one control plane at once, even if an mcm is cut off, hangs or is force-deleted."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kplane.mcm.instance.tenant_lease import TIMINGS, TenantLease
from kplane.mcm.placement.holder import lease_holder
from kplane.mcm.placement.lease_enforcer import _LEAD_SECONDS
from kplane.mcm.placement.sharding import Sharding
from kplane.provider import Cluster

from .start_gate_world import FaultServer

_SHARED: Final = "shared"
_PODS: Final = ("first pod", "second pod")
"""Successive pods of a registration of mode Dedicated. A pod that was deleted by force may still work."""
_NAMES: Final = (_SHARED, *_PODS)
_CLOCKS: Final = {name: 1000.0 * number for number, name in enumerate(_NAMES)}
"""Offset of each node's clock in seconds. Clocks of two nodes only agree in their speed."""


class Step(NamedTuple):
    """An action or a failure of an mcm, `seconds` after the previous step."""

    verb: str
    name: str
    seconds: float


class World:
    """A control plane, and all mcm that may run its instance, in simulated time."""

    def __init__(self, server: FaultServer, directory: Path) -> None:
        self.now = 0.0
        self._server = server
        self._cluster = Cluster("a", config=server.config)
        self._directory = directory
        self._leases: dict[str, TenantLease] = {}
        self._abandoned: list[TenantLease] = []

    def writers(self) -> list[str]:
        """Return each mcm whose instance may run. Its watchdog kills the instance shortly before the Lease runs out."""
        return [name for name, lease in self._leases.items() if lease.seconds_left > _LEAD_SECONDS]

    async def take(self, step: Step) -> None:
        self.now += step.seconds
        match step.verb:
            case "look":
                await self._look(step.name)
            case "lose an answer":
                self._server.loses_answers = True
                await self._look(step.name)
                self._server.loses_answers = False
            case "end":
                if (lease := self._leases.pop(step.name, None)) is not None:
                    await lease.release()
            case "kill":
                # The instance dies with its mcm, and the Lease is not released.
                if (lease := self._leases.pop(step.name, None)) is not None:
                    self._abandoned.append(lease)

    async def _look(self, name: str) -> None:
        lease = self._leases.get(name)
        if lease is None:
            lease = self._leases[name] = self._lease(name)
        await lease.acquire(self._server.config)

    def _lease(self, name: str) -> TenantLease:
        directory = self._directory / name
        directory.mkdir(exist_ok=True)
        sharding = Sharding(namespace="kplane-system", identity="mcm-0") if name == _SHARED else None
        holder = lease_holder(directory, sharding=sharding, uid=lambda _: "1")
        return TenantLease(
            self._cluster,
            program="kube-controller-manager",
            holder=holder,
            timeout_seconds=0.5,
            now=lambda: self.now + _CLOCKS[name],
        )

    async def aclose(self) -> None:
        for lease in (*self._leases.values(), *self._abandoned):
            await lease.release()


steps = st.lists(
    st.builds(
        Step,
        # An mcm that is cut off or stopped takes no step for a while.
        verb=st.sampled_from(["look", "look", "look", "lose an answer", "end", "kill"]),
        name=st.sampled_from(_NAMES),
        seconds=st.sampled_from([0.0, 5.0, 36.0, 59.0, 119.0, 121.0]),
    ),
    max_size=20,
)


@pytest.mark.parametrize("last", _NAMES)
@settings(max_examples=25, deadline=None)
@example(taken=[Step("look", "first pod", 0.0), Step("look", _SHARED, 5.0)])
@example(taken=[Step("look", _SHARED, 0.0), Step("look", "first pod", 5.0)])
@example(taken=[Step("look", "first pod", 0.0), Step("look", "second pod", 5.0), Step("look", "second pod", 119.0)])
@given(taken=steps)
def test_at_most_one_instance_may_run_in_any_order_of_steps(last: str, taken: Sequence[Step]) -> None:
    """No step reads the registration: the operator clears `status.instance` when a pod is deleted by force."""

    async def play(directory: Path) -> None:
        server = FaultServer(directory)
        await server.start()
        world = World(server, directory)
        try:
            for step in taken:
                await world.take(step)
                assert len(world.writers()) <= 1, world.writers()
            for name in _NAMES:
                await world.take(Step("kill", name, 0.0))
            await world.take(Step("look", last, 0.0))
            await world.take(Step("look", last, TIMINGS.duration_seconds))
            assert world.writers() == [last]
        finally:
            await world.aclose()
            await server.stop()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(play(Path(directory)))


@pytest.mark.parametrize(("name", "waits"), [("first pod", False), ("second pod", True), (_SHARED, True)])
def test_only_the_same_directory_takes_over_a_killed_pods_lease(name: str, waits: bool) -> None:
    async def play(directory: Path) -> None:
        server = FaultServer(directory)
        await server.start()
        world = World(server, directory)
        try:
            await world.take(Step("look", "first pod", 0.0))
            await world.take(Step("kill", "first pod", 0.0))
            await world.take(Step("look", name, 0.0))
            assert world.writers() == ([] if waits else [name])
            # A regular end releases the Lease, and the next mcm does not wait.
            await world.take(Step("kill", name, TIMINGS.duration_seconds))
            await world.take(Step("look", "first pod", TIMINGS.duration_seconds))
            await world.take(Step("end", "first pod", 0.0))
            await world.take(Step("look", name, 0.0))
            assert world.writers() == [name]
        finally:
            await world.aclose()
            await server.stop()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(play(Path(directory)))
