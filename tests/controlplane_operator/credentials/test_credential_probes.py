"""Probes of published credentials: wakes of the reconciler, and control planes that are not probed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes import credential_probes
from kplane.controlplane_operator.controlplanes.credential_probes import CredentialProbes, ProbedCredentials
from kplane.controlplane_operator.hibernation.host_name_use import HostNameUse
from kplane.controlplane_operator.tenant.bootstrap import (
    ADMIN_ACCOUNT,
    CONTROLLERS_ACCOUNT,
    admin_binding,
    controllers_binding,
)
from kplane.controlplane_operator.watch.stores import Stores
from kplane.controlplane_operator.watch.triggers import Triggers
from kplane.pki.issuing import Identity
from kplane.provider import ClusterConfig, Unreachable
from kplane.provider.client.admission import Guard
from tests.controlplane_operator.watched import taken

_KEY = ("", "acme")


def _probed(server: str) -> ProbedCredentials:
    until = datetime(2099, 1, 1, tzinfo=UTC)
    admin, controllers = Identity(until, until, token="admin"), Identity(until, until, token="controllers")
    bindings = admin_binding(ADMIN_ACCOUNT, role="cluster-admin"), controllers_binding(CONTROLLERS_ACCOUNT)
    return ProbedCredentials("1", ClusterConfig(server), ((admin, bindings[0]), (controllers, bindings[1])))


class World:
    """A control plane whose API server gives the answer of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer: str | Exception | None = None
        self.asked = 0
        self.guards: tuple[Guard, ...] | None = ()
        self.guard_reads = 0
        self.clock = 0.0
        self.said: list[str] = []
        self.stores, self.triggers = Stores(), Triggers()
        events = SimpleNamespace(record=lambda _, *, message, **__: self.said.append(message))
        context = SimpleNamespace(
            stores=self.stores,
            triggers=self.triggers,
            events=events,
            connections=None,
            brief_connections=None,
            gateway=None,
        )
        operator_context = cast("OperatorContext", context)
        self.probes = CredentialProbes(operator_context, use=HostNameUse(operator_context))
        self.probed = _probed("https://acme.example")
        self._version = 0

        async def refusal(*_: object) -> str | None:
            self.asked += 1
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        async def read_guards(_: object) -> tuple[Guard, ...] | None:
            self.guard_reads += 1
            return self.guards

        monkeypatch.setattr(ProbedCredentials, "refusal", refusal)
        monkeypatch.setattr(credential_probes, "lease_guards", read_guards)
        monkeypatch.setattr(credential_probes, "time", SimpleNamespace(monotonic=lambda: self.clock))
        self.store()

    def store(self, *, uid: str = "1", status: dict[str, Any] | None = None, **metadata: Any) -> None:
        self._version += 1
        fields = {"name": "acme", "uid": uid, "resourceVersion": str(self._version), **metadata}
        self.stores.control_planes.apply({"metadata": fields, "spec": {}, "status": status or {}})

    async def probe(self) -> bool:
        """Probe once. Returns whether the control plane is probed again."""
        return await self.probes.reconcile(_KEY) is not None

    @property
    def woken(self) -> int:
        return len(self.triggers.control_planes.channel.waiting)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def test_probe_wakes_reconciler_once_until_repair(world: World) -> None:
    world.probes.follow(_KEY, world.probed)
    world.answer = "ClusterRoleBinding controlplane-admin does not exist"
    assert await world.probe()
    assert world.probes.refusal("1") == world.answer
    assert (world.woken, len(world.said)) == (1, 1)
    assert taken(world.triggers.control_planes) == {"acme"}
    assert await world.probe()
    assert (world.woken, len(world.said)) == (0, 1)
    world.probes.follow(_KEY, world.probed)
    assert world.probes.refusal("1") is None
    assert await world.probe()
    assert (world.woken, len(world.said)) == (1, 2)


async def test_unreachable_api_server_is_no_refusal(world: World) -> None:
    world.probes.follow(_KEY, world.probed)
    world.answer = Unreachable("no answer", kind="timeout")
    assert await world.probe()
    assert world.probes.refusal("1") is None
    assert world.woken == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda world: world.store(status={"hibernation": {"reason": "Idle"}}),
        lambda world: world.store(annotations={"controlplane.kplane.dev/paused": "true"}),
        lambda world: world.store(deletionTimestamp="2026-11-27T00:00:00Z"),
        lambda world: world.store(uid="2"),
        lambda world: world.probes.stop(_KEY),
    ],
    ids=["asleep", "paused", "deleting", "another", "stopped"],
)
async def test_probe_of_sleeping_paused_or_gone_control_plane_is_skipped(
    world: World, change: Callable[[World], None]
) -> None:
    world.probes.follow(_KEY, world.probed)
    change(world)
    assert not await world.probe()
    assert world.asked == 0


async def test_probe_of_replaced_credentials_does_not_wake_reconciler(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refusal(*_: object) -> str:
        world.probes.follow(_KEY, _probed("https://other.example"))
        return "refused"

    monkeypatch.setattr(ProbedCredentials, "refusal", refusal)
    world.probes.follow(_KEY, world.probed)
    assert await world.probe()
    assert world.woken == 0


async def test_probe_reads_lease_guards_every_30_s_and_wakes_on_change(world: World) -> None:
    world.probes.follow(_KEY, world.probed)
    for clock, guards, woken, reads in (
        (0.0, (), 0, 1),
        (20.0, (Guard(webhook="a"),), 0, 1),
        (40.0, (Guard(webhook="a"),), 1, 2),
        (80.0, (Guard(webhook="a"),), 0, 3),
        (120.0, None, 0, 4),  # the API server did not answer
        (121.0, (), 1, 5),
    ):
        world.clock, world.guards = clock, guards
        assert await world.probe()
        assert (world.woken, world.guard_reads) == (woken, reads)
        if woken:
            taken(world.triggers.control_planes)
    assert world.probes.lease_guards("1") == ()
    world.probes.stop(_KEY)
    assert world.probes.lease_guards("1") is None


async def test_probe_compares_lease_guards_with_those_of_reconciler(world: World) -> None:
    world.guards = (Guard(webhook="a"),)
    world.probes.follow(_KEY, world.probed, guards=world.guards)
    world.clock = 40.0
    assert await world.probe()
    assert (world.woken, world.guard_reads) == (0, 1)
