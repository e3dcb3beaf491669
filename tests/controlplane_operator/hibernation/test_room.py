"""Limits of awake control planes: the order of wakes, and evictions."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kplane.api import ControlPlane, HibernationReason, StartPolicy
from kplane.api.names import LAST_USED_ANNOTATION, WAKE_REQUESTED_ANNOTATION
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.hibernation import room as rooms
from kplane.controlplane_operator.hibernation.decision import Decision, decide
from kplane.controlplane_operator.hibernation.room import Holder, Limits, Room, displaced, fits
from kplane.controlplane_operator.watch.stores import Stores
from kplane.controlplane_operator.watch.triggers import Triggers
from tests.controlplane_operator.watched import taken

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
MIB = 1 << 20


def holder(name: str, *, idle: float | None = 300.0, memory: int = 256 * MIB, leaves: bool = False) -> Holder:
    active = NOW - timedelta(seconds=idle) if idle is not None else None
    return Holder(name, name, memory, active=active, leaves=leaves)


def names(holders: list[Holder]) -> list[str]:
    return [entry.name for entry in holders]


def test_displaced_evicts_longest_idle_and_no_more_than_needed() -> None:
    awake = [holder("a", idle=200), holder("b", idle=400), holder("c", idle=300), holder("d", idle=10)]
    newcomer = holder("new", idle=None)
    for count, expected in ((5, []), (4, ["b"]), (3, ["b", "c"]), (2, ["b", "c", "a"]), (1, [])):
        assert names(displaced(awake, limits=Limits(count), now=NOW, newcomer=newcomer)) == expected
    # Without a newcomer, all idle control planes above the limit are evicted.
    assert names(displaced(awake, limits=Limits(1), now=NOW)) == ["b", "c", "a"]
    memory = Limits(memory_bytes=600 * MIB)
    assert names(displaced(awake[:2], limits=memory, now=NOW, newcomer=newcomer)) == ["b"]


def test_displaced_counts_slot_of_leaving_holder_as_free() -> None:
    awake = [holder("a"), holder("b", leaves=True)]
    assert displaced(awake, limits=Limits(2), now=NOW, newcomer=holder("new")) == []
    assert not fits([*awake, holder("new")], limits=Limits(2))


def test_single_control_plane_may_exceed_memory_limit() -> None:
    large_holder = holder("large", memory=64 << 30)
    limits = Limits(memory_bytes=1 << 30)
    assert fits([large_holder], limits=limits)
    assert not fits([large_holder, holder("a")], limits=limits)
    assert names(displaced([holder("a")], limits=limits, now=NOW, newcomer=large_holder)) == ["a"]


@pytest.mark.parametrize("seed", range(200))
def test_displaced_evicts_only_idle_holders_to_keep_limits(seed: int) -> None:
    generator = random.Random(seed)
    awake = [
        holder(
            f"c{number}",
            idle=generator.choice([None, 0.0, 179.0, 180.0, 500.0, 1000.0 + number]),
            memory=generator.choice([128, 256, 1024]) * MIB,
            leaves=generator.random() < 0.2,
        )
        for number in range(generator.randrange(8))
    ]
    limits = Limits(generator.choice([None, 1, 2, 4]), generator.choice([None, 512 * MIB, 2048 * MIB]))
    newcomer = generator.choice([None, holder("new", idle=None)])
    victims = displaced(awake, limits=limits, now=NOW, newcomer=newcomer)
    assert all(entry.active is not None and NOW - entry.active >= timedelta(minutes=3) for entry in victims)
    assert not any(entry.leaves for entry in victims)
    remaining = [
        entry.active for entry in awake if entry not in victims and not entry.leaves and entry.active is not None
    ]
    idle = [active for active in remaining if NOW - active >= timedelta(minutes=3)]
    assert all(entry.active is not None and entry.active <= active for entry in victims for active in idle)
    staying = [entry for entry in awake if not entry.leaves and entry not in victims] + (
        [newcomer] if newcomer is not None else []
    )
    if victims:
        assert not fits([*staying, victims[-1]], limits=limits)
    if newcomer is not None and victims:
        assert fits(staying, limits=limits)


class World:
    """Control planes of an operator, and the queue of their passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, limits: Limits, at_once: int = 9) -> None:
        self.stores, self.triggers, self.now, self.seconds, self.version = Stores(), Triggers(), NOW, 0.0, 0
        context = SimpleNamespace(stores=self.stores, triggers=self.triggers, gateway=None)
        self.room = Room(cast("OperatorContext", context), limits=limits, at_once=at_once)
        monkeypatch.setattr(rooms.time, "monotonic", lambda: self.seconds)

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.seconds += seconds

    def put(
        self,
        name: str,
        *,
        asleep: bool = False,
        idle: float = 300.0,
        start: str = "OnDemand",
        memory: str = "256Mi",
        **more: Any,
    ) -> None:
        """Store a control plane: `idle` is the seconds since its last use or, if it sleeps, since its wake request."""
        self.version += 1
        time = (self.now - timedelta(seconds=idle)).isoformat()
        annotation = WAKE_REQUESTED_ANNOTATION if asleep else LAST_USED_ANNOTATION
        condition = {"type": "Hibernated", "status": str(asleep), "reason": "x", "message": ""}
        status: dict[str, Any] = {"endpoint": f"https://{name}"}
        status["conditions"] = [condition | {"lastTransitionTime": (NOW - timedelta(days=1)).isoformat()}]
        if asleep:
            since = (self.now - timedelta(days=1)).isoformat()
            status["hibernation"] = {"since": since, "reason": "Idle", "observedGeneration": 1}
        metadata: dict[str, Any] = {"name": name, "uid": name, "generation": 1, "resourceVersion": str(self.version)}
        metadata["annotations"] = {annotation: time}
        spec = {"virtual": {"start": start}, "resources": {"requests": {"memory": memory}}}
        self.stores.control_planes.apply({"metadata": metadata, "spec": spec, "status": status | more})

    def turn(self, name: str) -> Decision:
        obj = self.stores.control_planes.get(("", name))
        assert obj is not None
        control_plane = ControlPlane.model_validate(obj)
        start = StartPolicy(obj["spec"]["virtual"]["start"])
        decision = decide(control_plane, start=start, now=self.now)
        final_decision = self.room.settle(control_plane, decision, chosen=None, now=self.now)
        self.room.call_next(after=name)
        return final_decision

    def called(self) -> list[str]:
        """Return the names of the control planes that were enqueued since the last call."""
        return sorted(taken(self.triggers.control_planes))


def test_waiting_control_planes_wake_in_order_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, limits=Limits(1))
    world.put("busy", idle=5)
    world.put("second", asleep=True, idle=20)
    world.put("first", asleep=True, idle=30)
    world.put("always", start="Always")
    assert world.turn("second").crowded
    assert world.turn("first").crowded
    # The control plane is in use, so that it is not evicted.
    assert world.turn("busy").sleep is None
    assert world.called() == ["first"]
    for called in ([], [], [], ["busy"]):
        world.later(45)
        assert world.turn("second").crowded
        assert world.called() == ["first"]
        assert world.turn("first").crowded
        assert world.called() == called
    decision = world.turn("busy")
    assert decision.begins
    assert decision.sleep is not None
    assert decision.sleep.reason is HibernationReason.ROOM_NEEDED
    assert world.called() == ["first"]
    assert world.turn("first").crowded
    world.put("busy", asleep=True, idle=100_000)
    assert world.turn("second").crowded
    assert not world.turn("first").crowded
    assert world.turn("second").crowded
    world.put("first", idle=0)
    assert world.turn("first").sleep is None
    assert world.turn("second").crowded


def test_request_of_earlier_sleep_gives_no_place_in_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, limits=Limits(1))
    world.put("busy", idle=5)
    due = {"since": (NOW - timedelta(hours=1)).isoformat(), "nextWake": NOW.isoformat(), "reason": "Idle"}
    world.put("due", asleep=True, idle=100_000, hibernation=due | {"observedGeneration": 1})
    world.put("asked", asleep=True, idle=5)
    assert world.turn("due").crowded
    assert world.turn("asked").crowded
    world.put("busy", asleep=True, idle=100_000)
    assert world.turn("due").crowded
    assert not world.turn("asked").crowded


def test_slow_start_is_not_evicted_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, limits=Limits(1))
    sleep = {"since": (NOW - timedelta(days=1)).isoformat(), "reason": "Idle", "observedGeneration": 0}
    world.put("slow", idle=200, hibernation=sleep)
    assert world.turn("slow").sleep is None
    world.put("slow", idle=200)
    world.put("new", asleep=True, idle=1)
    assert world.turn("new").crowded
    assert world.called() == []
    world.later(61)
    assert world.turn("new").crowded
    assert world.called() == ["slow"]


@pytest.mark.parametrize("used", [True, False])
def test_woken_control_plane_without_use_is_evicted_after_a_minute(
    monkeypatch: pytest.MonkeyPatch, *, used: bool
) -> None:
    world = World(monkeypatch, limits=Limits(1))
    condition = {"type": "Hibernated", "status": "False", "reason": "x", "message": ""}
    conditions = [condition | {"lastTransitionTime": world.now.isoformat()}]
    world.put("woken", idle=-1 if used else 300, conditions=conditions)
    woken_object = world.stores.control_planes.get(("", "woken"))
    assert woken_object is not None
    woken_object["metadata"]["annotations"][WAKE_REQUESTED_ANNOTATION] = world.now.isoformat()
    for seconds, called in ((59, False), (2, not used), (118, not used), (5, True)):
        world.later(seconds)
        world.put("new", asleep=True, idle=1)
        world.turn("new")
        assert ("woken" in world.called()) is called
        world.room.forget("woken")


def test_concurrent_starts_are_limited_and_stuck_start_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, limits=Limits(), at_once=2)
    for number in range(4):
        world.put(f"c{number}", asleep=True, idle=40 - number)
    assert [world.turn(f"c{number}").crowded for number in range(4)] == [False, False, True, True]
    assert not world.turn("c0").crowded
    world.put("c0", idle=0)
    assert world.turn("c0").sleep is None
    assert "c2" in world.called()
    assert [world.turn(f"c{number}").crowded for number in (3, 2)] == [True, False]
    assert world.turn("c3").crowded
    world.later(10)
    assert not world.turn("c3").crowded


def test_admitted_control_plane_without_start_loses_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, limits=Limits(1))
    for name, idle in (("fails", 30), ("next", 20)):
        world.put(name, asleep=True, idle=idle)
    assert not world.turn("fails").crowded
    assert world.turn("next").crowded
    world.later(11)
    assert not world.turn("next").crowded


def test_control_plane_without_attempts_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, limits=Limits(1))
    world.put("busy", idle=5)
    for name, idle in (("gone", 30), ("next", 20)):
        world.put(name, asleep=True, idle=idle)
        assert world.turn(name).crowded
    world.put("busy", asleep=True, idle=100_000)
    assert world.turn("next").crowded
    world.later(61)
    assert not world.turn("next").crowded


def test_spared_control_plane_is_not_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, limits=Limits(1))
    world.put("kept")
    world.put("new", asleep=True, idle=1)
    assert world.turn("new").crowded
    assert world.turn("kept").begins
    world.room.spare("kept")
    assert world.turn("new").crowded
    assert not world.turn("kept").begins


def test_control_plane_in_key_rotation_is_not_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, limits=Limits(2))
    rotation = {"value": "1", "phase": "Overlapping", "startedAt": NOW.isoformat(), "phaseStartedAt": NOW.isoformat()}
    world.put("rotated", idle=500, rotation=rotation)
    world.put("idle", idle=300)
    world.put("new", asleep=True, idle=1)
    assert world.turn("new").crowded
    assert world.called() == ["idle"]
    assert not world.turn("rotated").begins
    assert world.turn("idle").begins


def test_other_control_plane_is_evicted_if_first_stays_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, limits=Limits(2))
    world.put("silent", idle=500)
    world.put("other", idle=300)
    world.put("new", asleep=True, idle=1)
    assert world.turn("new").crowded
    assert world.called() == ["silent"]
    for _ in range(2):
        # The check of the inside fails, so that the status has no sleep, and a later pass begins the sleep.
        assert world.turn("silent").begins
        assert world.called() == ["new"]
        assert world.turn("new").crowded
        assert world.called() == []
        world.later(22)
    world.later(1)
    assert world.turn("new").crowded
    assert world.turn("new").crowded
    assert world.called() == ["other"]
    assert not world.turn("silent").begins


@pytest.mark.parametrize("how", ["falls asleep", "is deleted"])
def test_other_control_plane_is_evicted_if_end_takes_over_a_minute(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    world = World(monkeypatch, limits=Limits(2))
    world.put("other", idle=300)
    if how == "falls asleep":
        condition = {"type": "Hibernated", "status": "False", "reason": "FallingAsleep", "message": ""}
        sleep = {"since": NOW.isoformat(), "reason": "Idle", "observedGeneration": 1}
        conditions = [condition | {"lastTransitionTime": NOW.isoformat()}]
        world.put("stuck", idle=500, hibernation=sleep, conditions=conditions)
    else:
        world.put("stuck", idle=500)
        obj = world.stores.control_planes.get(("", "stuck"))
        assert obj is not None
        obj["metadata"]["deletionTimestamp"] = NOW.isoformat()
    world.put("new", asleep=True, idle=1)
    assert world.turn("new").crowded
    assert world.called() == []
    world.later(61)
    assert world.turn("new").crowded
    assert world.called() == ["other"]


def test_broken_start_loses_its_slot_after_five_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, limits=Limits(1))
    condition = {"type": "Hibernated", "status": "False", "reason": "Waking", "message": ""}
    sleep = {"since": (NOW - timedelta(hours=1)).isoformat(), "reason": "Idle", "observedGeneration": 1}
    conditions = [condition | {"lastTransitionTime": NOW.isoformat()}]
    world.put("broken", idle=500, hibernation=sleep, conditions=conditions)
    world.put("new", asleep=True, idle=1)
    world.later(299)
    assert world.turn("new").crowded
    world.later(1)
    assert not world.turn("new").crowded


def test_lower_limit_evicts_longest_idle_control_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, limits=Limits(1))
    world.put("a", idle=200)
    world.put("b", idle=300)
    world.put("always", start="Always", idle=900)
    assert not world.turn("a").begins
    assert world.called() == ["b"]
    assert world.turn("b").begins


def test_large_head_of_queue_blocks_smaller_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, limits=Limits(memory_bytes=1024 * MIB))
    world.put("busy", idle=0)
    world.put("large", asleep=True, idle=2, memory="1Gi")
    world.put("small", asleep=True, idle=1)
    for _ in range(2):
        assert [world.turn(name).crowded for name in ("large", "small")] == [True, True]
        world.later(30)
    world.put("busy", idle=0)
    assert [world.turn(name).crowded for name in ("large", "small")] == [True, False]
    # The large control plane wakes before all others as soon as it fits.
    for name in ("busy", "small"):
        world.put(name, asleep=True, idle=100_000)
        assert world.turn(name).sleep is not None
    world.put("next", asleep=True, idle=1)
    assert [world.turn(name).crowded for name in ("next", "large")] == [True, False]


def test_control_plane_does_not_overtake_head_of_equal_size(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, limits=Limits(2))
    for name in ("busy", "ends"):
        world.put(name, idle=0)
    world.put("first", asleep=True, idle=2)
    world.put("second", asleep=True, idle=1)
    for _ in range(2):
        assert [world.turn(name).crowded for name in ("first", "second")] == [True, True]
        world.later(45)
        world.put("busy", idle=0)
    world.put("ends", asleep=True, idle=100_000)
    assert [world.turn(name).crowded for name in ("second", "first")] == [True, False]


def test_requested_memory_counts_against_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, limits=Limits(memory_bytes=600 * MIB))
    world.put("a", idle=1)
    for name, crowded in (("b", False), ("c", True)):
        world.put(name, asleep=True, idle=1)
        assert world.turn(name).crowded is crowded
