"""Sleep of control planes: announcement, check of the inside, and stop of the API server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kplane.api import Condition, ControlPlane, ControlPlaneClass, HibernationReason
from kplane.api.names import SLEEP_REQUESTED_ANNOTATION, WAKE_REQUESTED_ANNOTATION
from kplane.controlplane_operator.backends.base import Hibernating
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.hibernation import sleeper
from kplane.controlplane_operator.hibernation.bootstrap_tokens import BootstrapToken
from kplane.controlplane_operator.hibernation.credentials import Credentials
from kplane.controlplane_operator.hibernation.decision import Decision
from kplane.controlplane_operator.hibernation.host_name_use import HostNameUse, UseUnknown
from kplane.controlplane_operator.hibernation.inside import Inside
from kplane.controlplane_operator.hibernation.room import Limits, Room
from kplane.controlplane_operator.hibernation.sleeper import Sleeper
from kplane.controlplane_operator.watch.stores import Stores
from kplane.controlplane_operator.watch.triggers import Triggers

SLEEP = {"since": datetime.now(UTC).isoformat(), "reason": "Requested", "observedGeneration": 3}
CHOSEN = ControlPlaneClass.model_validate({"metadata": {"name": "c"}, "spec": {"virtual": {"start": "OnDemand"}}})
LONG_AGO = "2026-01-01T00:00:00Z"
DUE = datetime.now(UTC) + timedelta(hours=1)


class Backend:
    """Fake backend, which counts checks and stops of API servers."""

    def __init__(self) -> None:
        self.asked = 0
        self.ended = 0
        self.needs: str | None = None
        self.silent = False
        self.ending = False

    def is_ending(self, _: ControlPlane) -> bool:
        return self.ending

    async def needs_api_server(self, _: ControlPlane) -> str | None:
        self.asked += 1
        if self.silent:
            raise KeyspaceError("etcd does not answer")
        return self.needs

    async def hibernate(self, _: ControlPlane) -> Any:
        self.ended += 1
        return "provision"


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stores, self.backend, self.inside = Stores(), Backend(), Inside(next_wake=DUE)
        self.triggers = Triggers()
        context = cast("OperatorContext", SimpleNamespace(stores=self.stores, triggers=self.triggers, gateway=None))
        room = Room(context, limits=Limits(), at_once=2)
        self.sleeper = Sleeper(
            context, backend=lambda _: cast("Hibernating", self.backend), room=room, use=HostNameUse(context)
        )

        async def look(*_: Any, **__: Any) -> Inside:
            return self.inside

        monkeypatch.setattr(self.sleeper, "_look_inside", look)
        self.seconds = 0.0
        monkeypatch.setattr(sleeper.time, "monotonic", lambda: self.seconds)

    async def turn(self, control_plane: ControlPlane) -> tuple[Decision, Any]:
        decision = await self.sleeper.decide(control_plane, chosen=CHOSEN)
        return decision, await self.sleeper.hibernate(control_plane, decision)

    async def fall_asleep(self) -> tuple[Decision, Any]:
        """Run two passes of a control plane that falls asleep, 2 s apart, so that every gateway knows of the sleep."""
        await self.turn(control_plane(sleep=True, told="False"))
        self.seconds += 2.0
        return await self.turn(control_plane(sleep=True, told="False"))

    def register(self, **status: Any) -> None:
        metadata = {"name": "r", "uid": "r", "resourceVersion": "1"}
        spec = {"controlPlaneRef": {"name": "acme"}}
        self.stores.registrations.apply({"metadata": metadata, "spec": spec, "status": status})


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def control_plane(*, sleep: bool, told: str | None = None, published: bool = True) -> ControlPlane:
    status: dict[str, Any] = {"endpoint": "https://acme"} if published else {}
    if sleep:
        status["hibernation"] = SLEEP
    if told is not None:
        condition = {"type": "Hibernated", "status": told, "reason": "Hibernated", "message": ""}
        status["conditions"] = [condition | {"lastTransitionTime": "2026-01-01T00:00:00Z"}]
    annotations = {SLEEP_REQUESTED_ANNOTATION: datetime.now(UTC).isoformat()}
    metadata = {"name": "acme", "uid": "1", "generation": 3, "annotations": annotations}
    return ControlPlane.model_validate({"metadata": metadata, "spec": {}, "status": status})


async def test_sleep_is_announced_a_pass_before_api_server_stops(world: World) -> None:
    decision, provision = await world.turn(control_plane(sleep=False))
    assert decision.sleep is not None
    assert (decision.sleep.next_wake, provision) == (DUE, None)
    assert (await world.fall_asleep())[1] == "provision"
    assert world.backend.ended == 1


async def test_sleep_records_namespace_whose_deletion_does_not_end(world: World) -> None:
    world.inside = Inside(stuck="namespace shop is being deleted", next_wake=DUE)
    decision, _ = await world.turn(control_plane(sleep=False))
    assert decision.sleep is not None
    assert decision.sleep.stuck_namespace == "namespace shop is being deleted"
    world.inside = Inside(next_wake=DUE)
    decision, provision = await world.fall_asleep()
    assert decision.sleep is not None
    assert (decision.sleep.stuck_namespace, provision) == (None, "provision")
    world.inside = Inside("namespace shop is being deleted", stuck="namespace shop is being deleted")
    decision, _ = await world.turn(control_plane(sleep=False))
    assert (decision.sleep, decision.kept, decision.stuck) == (None, True, True)


async def test_api_server_serves_two_seconds_after_announcement(world: World) -> None:
    decision, _ = await world.turn(control_plane(sleep=False))
    assert decision.begins
    candidate = control_plane(sleep=True, told="False")
    for _ in range(2):
        decision, provision = await world.turn(candidate)
        assert (provision, decision.waits, world.backend.ended) == (None, "", 0)
        assert decision.sleep is not None
        assert decision.again is not None
        world.seconds += 1.5
    assert (await world.turn(candidate))[1] == "provision"
    # A later sleep is announced again.
    assert (await world.turn(control_plane(sleep=True, told="True")))[1] == "provision"
    assert (await world.turn(candidate))[1] is None
    # A new control plane has no clients yet.
    assert (await world.turn(control_plane(sleep=False, published=False)))[1] == "provision"


async def test_credentials_are_recorded_before_api_server_stops(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[Any] = []

    async def record(_context: Any, _control_plane: Any, found: Credentials) -> None:
        assert world.backend.ended == 0
        records.append(found)

    monkeypatch.setattr(sleeper, "record_credentials", record)
    credentials = Credentials((BootstrapToken("abcdef.0123456789abcdef"),), None)
    world.inside = Inside(next_wake=DUE, credentials=credentials)
    await world.turn(control_plane(sleep=False))
    assert records == []
    assert (await world.fall_asleep())[1] == "provision"
    assert records == [credentials]
    # Later passes do not write the credentials again.
    await world.turn(control_plane(sleep=True, told="True"))
    assert records == [credentials]


async def test_wake_request_after_announcement_ends_the_sleep(world: World) -> None:
    candidate = control_plane(sleep=True, told="False")
    assert (await world.turn(candidate))[0].waits == ""
    candidate.metadata.annotations[WAKE_REQUESTED_ANNOTATION] = datetime.now(UTC).isoformat()
    decision, provision = await world.turn(candidate)
    assert (decision.sleep, decision.kept, provision, world.backend.ended) == (None, False, None, 0)


async def test_failed_check_is_repeated_for_30_s_then_keeps_awake(world: World) -> None:
    world.inside = Inside("no answer", unknown=True)
    for seconds in (0.0, 29.0):
        world.seconds = seconds
        decision, _ = await world.turn(control_plane(sleep=False))
        assert (decision.sleep, decision.kept) == (None, False)
        assert decision.again is not None
        assert (decision.again - datetime.now(UTC)).total_seconds() <= 8.0
        decision, provision = await world.turn(control_plane(sleep=True, told="False"))
        assert decision.sleep is not None
        assert (decision.kept, provision) == (False, None)
        assert "no answer" in (decision.waits or "")
    world.backend.silent = True
    assert "etcd" in ((await world.turn(control_plane(sleep=True, told="False")))[0].waits or "")
    world.backend.silent = False
    # Work may be due, so that the control plane is kept awake.
    world.seconds = 31.0
    for sleep in (True, False):
        decision, _ = await world.turn(control_plane(sleep=sleep, told="False"))
        assert (decision.sleep, decision.kept, decision.why) == (None, True, "no answer")
    # Later consecutive failures count from the first of them.
    world.inside = Inside(next_wake=DUE)
    assert (await world.turn(control_plane(sleep=False)))[0].begins
    world.inside = Inside("no answer", unknown=True)
    assert not (await world.turn(control_plane(sleep=False)))[0].kept


@pytest.mark.parametrize(
    "status",
    [{"ready": True, "controlPlaneUID": "1"}, {"instance": {"controlPlaneUID": "1"}}],
    ids=["ready", "instance"],
)
async def test_api_server_runs_while_a_registration_uses_it(world: World, status: dict[str, Any]) -> None:
    world.register(**status)
    candidate = control_plane(sleep=True, told="False")
    assert (await world.fall_asleep())[1] is None
    assert "r" in world.sleeper.waits_for(candidate)
    # A stopped API server is not started again for an instance in the status of a registration.
    assert (await world.turn(control_plane(sleep=True, told="True")))[1] == "provision"


@pytest.mark.parametrize(
    ("reason", "kept"),
    [("KeysChanged", True), ("KeysUnusable", True), ("Failed", True), ("EndpointUnreachable", False), (None, False)],
)
@pytest.mark.parametrize("begun", [False, True])
async def test_unusable_keys_keep_control_plane_awake(
    world: World, reason: str | None, kept: bool, begun: bool
) -> None:
    candidate = control_plane(sleep=begun, told="False")
    ready = {"type": "Ready", "status": "False", "reason": reason, "message": "", "lastTransitionTime": LONG_AGO}
    if reason is not None:
        candidate.status.conditions.append(Condition.model_validate(ready))
    decision, _ = await world.turn(candidate)
    assert (decision.kept, decision.sleep is None) == (kept, kept)
    assert world.backend.ended == 0


async def test_work_inside_or_flags_end_a_sleep_that_has_begun(world: World) -> None:
    world.inside = Inside("Job shop/one runs")
    for sleep in (False, True):
        decision, provision = await world.turn(control_plane(sleep=sleep, told="False"))
        assert (decision.sleep, decision.kept, provision) == (None, True, None)
        assert decision.again is not None
    world.backend.needs = "flags decide"
    decision, _ = await world.turn(control_plane(sleep=False))
    assert (decision.why, decision.kept) == ("flags decide", True)


async def test_stop_in_progress_continues_without_a_check(world: World) -> None:
    """The API server may not answer a check of the inside any more. That must not keep the control plane awake."""
    world.inside, world.backend.ending = Inside("the operator cannot look inside"), True
    decision, provision = await world.turn(control_plane(sleep=True, told="False"))
    assert decision.sleep is not None
    assert provision == "provision"
    # An API server that crashed before the announcement of the sleep is started again and checked.
    assert (await world.turn(control_plane(sleep=False)))[0].kept


async def test_sleeping_or_new_control_plane_is_not_checked(world: World) -> None:
    world.inside, world.backend.needs = Inside("it is not asked"), "it is not asked"
    assert (await world.turn(control_plane(sleep=True, told="True")))[0].sleep is not None
    assert (await world.turn(control_plane(sleep=False, published=False)))[1] == "provision"
    assert world.backend.asked == 0


@pytest.mark.parametrize(
    ("used", "begins", "kept"),
    [
        (None, True, False),
        (timedelta(minutes=12), True, False),
        (timedelta(minutes=10), False, False),
        (UseUnknown("it does not say"), False, True),
    ],
)
async def test_idle_control_plane_with_host_name_sleeps_unless_used(
    world: World, monkeypatch: pytest.MonkeyPatch, used: timedelta | Exception | None, begins: bool, kept: bool
) -> None:
    now = datetime.now(UTC)

    async def observe(*_: object) -> datetime | None:
        if isinstance(used, Exception):
            raise used
        return now - used if used is not None else None

    monkeypatch.setattr(HostNameUse, "observe", observe)
    monkeypatch.setattr(sleeper, "is_counted", lambda *_, **__: True)
    monkeypatch.setattr(sleeper, "idle_after", lambda _: timedelta(minutes=2))
    candidate = control_plane(sleep=False, told="False")
    candidate.metadata.annotations.clear()
    decision, _ = await world.turn(candidate)
    assert (decision.begins, decision.kept) == (begins, kept)
    assert decision.sleep is None or decision.sleep.reason is HibernationReason.IDLE
    if isinstance(used, timedelta) and not begins:
        assert decision.again == now - used + timedelta(minutes=11)
    # A sleep request of a user is granted despite the use.
    assert (await world.turn(control_plane(sleep=False, told="False")))[0].begins
