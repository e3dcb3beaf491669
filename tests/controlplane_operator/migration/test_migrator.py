"""Migrations complete although the operator dies at any call, and at most one home takes writes at any time."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kplane.api import ControlPlane
from kplane.api.reasons import Reason
from kplane.controlplane_operator.controlplanes.migration.cut import Cutter
from kplane.controlplane_operator.controlplanes.migration.turns import Turns
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.provider import ProviderError

from .homes import Home, Killed, Operator, World

AWAY = ConditionError(Reason.MIGRATING, "it does not answer")


async def moved(
    world: World,
    *,
    to: str = "Dedicated",
    passes: int = 40,
    until: str = "Retaining",
    others: Sequence[dict[str, Any]] = (),
) -> None:
    """Run an operator until the control plane is in home `to` and in step `until`."""
    operator = Operator(world, others=others)
    for _ in range(passes):
        await operator.reconcile()
        world.control_controllers()
        world.write()
        if str(world.control_plane.home) == to and world.step == until:
            break
    else:
        raise AssertionError(f"not in {passes} passes: {world.object['status']}")
    for _ in range(4):
        await operator.reconcile()
    world.check()
    world.write()
    assert (world.server, world.held) == (world.lives_in, False)
    assert world.homes[world.lives_in].takes_writes
    assert not world.homes[1 - world.lives_in].runs
    assert world.refused == []


async def killed(world: World, *, at: int, to: str = "Dedicated") -> bool:
    """Run an operator until it dies at call `at`. Returns whether it died."""

    async def die(now: int, name: str) -> None:
        # An API server of a home that is not in use tries to write at any time.
        world.write(by="itself")
        if now == before + at:
            raise Killed(name)

    before, world.at = world.calls, die
    try:
        await moved(world, to=to)
    except Killed:
        return True
    finally:
        world.at = None
    return False


async def test_migration_completes_if_operator_dies_at_any_call(monkeypatch: pytest.MonkeyPatch) -> None:
    at = 0
    while True:
        at += 1
        world = World(monkeypatch)
        world.set_spec(mode="Dedicated")
        if not await killed(world, at=at):
            break
        await moved(world)
        world.set_spec(mode="Virtual")
        await moved(world, to="Virtual")
    assert at > 40


async def test_move_of_lost_data_makes_no_new_home(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.identity = world.homes[0].identity = "other"
    world.set_spec(mode="Dedicated")
    operator = Operator(world)
    for _ in range(5):
        await operator.reconcile()
    assert (world.step, world.homes[1]) == (None, Home())
    assert "/registry/ has data of identity other instead of 5f0c" in str(world.object["status"]["conditions"])

    # A restore of the volume brings the data back.
    world.identity = world.homes[0].identity = "5f0c"
    await moved(world)


async def test_clients_read_no_old_data_while_gateway_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.set_spec(mode="Dedicated")

    async def hang(_: int, name: str) -> None:
        world.hangs |= name == "write status Retaining, done"
        world.write(by="itself")

    world.at = hang
    operator = Operator(world)
    for _ in range(20):
        await operator.reconcile()
        world.control_controllers()
    assert (world.hangs, world.server, world.lives_in) == (True, 0, 1)
    assert world.homes[1].takes_writes
    assert not world.homes[0].runs


@pytest.mark.parametrize("retire", [[], [AWAY] * 2], ids=["at once", "after failures"])
async def test_sealed_home_is_retired_before_gateway_follows(
    monkeypatch: pytest.MonkeyPatch, retire: list[BaseException | str]
) -> None:
    """A sealed API server still answers reads at resourceVersion 0 from its cache, and keeps watches open."""
    world, calls = World(monkeypatch, window="10m"), list[str]()
    world.faults = {"retire": retire}
    world.set_spec(mode="Dedicated")

    async def hang(_: int, name: str) -> None:
        calls.append(name)
        if name == "write status Retaining, done":
            world.hangs = world.renews = True

    world.at = hang
    operator = Operator(world)
    for _ in range(20):
        await operator.reconcile()
        world.control_controllers()
    assert (world.server, world.lives_in, world.step) == (0, 1, "Retaining")
    assert calls[calls.index("end hold, done") + 1] == "retire"
    assert not world.homes[0].runs
    assert world.homes[0].exists

    # A rollback starts the API server of the former home again.
    world.at, world.hangs = None, False
    world.learn()
    await moved(world, to="Dedicated")
    world.set_spec(mode="Virtual")
    await moved(world, to="Virtual")


async def test_operator_dies_after_seal_and_next_one_retires_home(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, window="10m")
    world.set_spec(mode="Dedicated")

    async def die(_: int, name: str) -> None:
        if name == "write status Retaining, done":
            world.hangs = world.renews = True
        if name == "end hold, done":
            raise Killed(name)

    world.at = die
    with pytest.raises(Killed):
        await moved(world)
    assert world.homes[0].runs
    world.at = None
    await Operator(world).reconcile()
    assert not world.homes[0].runs


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    deaths=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    homes=st.lists(
        st.sampled_from(["Virtual", "Virtual (pool-b)", "Dedicated", "Dedicated (20Gi)"]), min_size=4, max_size=4
    ),
    window=st.sampled_from(["0s", "10m"]),
)
async def test_migration_reaches_last_home_despite_deaths_and_changes(
    deaths: list[int], homes: list[str], window: str
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        world = World(monkeypatch, window=window)
        home = "Virtual"
        for at, home in zip(deaths, homes, strict=False):
            world.ask_for(home)
            await killed_at_last(world, at=at)
        world.at = None
        await settled(world, home)


async def killed_at_last(world: World, *, at: int) -> None:
    """Run an operator until it dies at call `at`. The migration need not complete before."""
    operator, last = Operator(world), world.calls + at

    async def die(now: int, name: str) -> None:
        world.write(by="itself")
        if now == last:
            raise Killed(name)

    world.at = die
    with contextlib.suppress(Killed):
        while True:
            await operator.reconcile()
            world.control_controllers()
            world.write()


async def settled(world: World, home: str) -> None:
    """Run an operator until the control plane is in its home and no migration is under way."""
    operator = Operator(world)
    for _ in range(2):
        for _ in range(60):
            await operator.reconcile()
            world.control_controllers()
            world.write()
        if str(world.control_plane.home) == home:
            break
        # The move waits until the former home, whose objects would have the same names, is removed.
        assert world.step == "Retaining"
        world.set_spec(migration={"rollbackWindow": "0s"})
    assert str(world.control_plane.home) == home
    assert (world.server, world.held) == (world.lives_in, False)
    assert world.homes[world.lives_in].takes_writes
    assert world.refused == []
    if world.step in {None, "Completed"}:
        assert world.homes[1 - world.lives_in] == Home()
    else:
        assert world.step == "Retaining"


@pytest.mark.parametrize("step", ["Preparing", "Copying", "Starting", "EndingControllers"])
async def test_aborted_migration_leaves_no_status_and_no_target_home(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    world = World(monkeypatch)
    world.set_spec(mode="Dedicated")

    class Reached(BaseException):
        pass

    async def stop(_: int, name: str) -> None:
        if name == f"write status {step}, done":
            raise Reached

    world.at = stop
    with pytest.raises(Reached):
        await moved(world)
    world.at = None
    world.set_spec(mode="Virtual")
    await settled(world, "Virtual")
    assert "migration" not in world.object["status"]
    assert world.homes[1] == Home()


@pytest.mark.parametrize("call", ["hold", "fence home 0", "compare", "free home 0", "end hold"])
async def test_control_plane_stays_in_former_home_after_failed_cut(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    world = World(monkeypatch)
    world.faults = {"hold": [TimeoutError()], call: [AWAY if call != "hold" else TimeoutError()]}
    world.set_spec(mode="Dedicated")
    operator = Operator(world)
    while not (world.object["status"].get("migration") or {}).get("attempts"):
        await operator.reconcile()
        world.control_controllers()
        world.write()
    assert world.lives_in == 0
    await moved(world)
    assert world.object["status"]["migration"]["attempts"] > 1


async def test_cut_is_repeated_if_homes_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.faults = {"compare": ["unequal"]}
    world.set_spec(mode="Dedicated")
    await moved(world)
    assert world.object["status"]["migration"]["attempts"] == 2


async def test_abort_lifts_fence_after_earlier_attempts_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    operator = Operator(world)
    await operator.reconcile()
    world.faults = {"compare": ["unequal"], "free home 0": [AWAY] * 4}
    world.set_spec(mode="Dedicated")
    while world.homes[0].may_write:
        await operator.reconcile()
        world.control_controllers()
    world.set_spec(mode="Virtual")
    for _ in range(5):
        await operator.reconcile()
    assert world.homes[0].takes_writes
    assert "migration" not in world.object["status"]


async def test_cut_is_repeated_if_write_of_new_home_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.faults = {"write status Retaining": [ProviderError("the management cluster does not answer")] * 3}
    world.set_spec(mode="Dedicated")
    await moved(world)
    assert world.object["status"]["migration"]["attempts"] == 4


async def test_controllers_continue_if_an_instance_does_not_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.set_spec(mode="Dedicated")
    operator, steps = Operator(world), []
    for _ in range(20):
        await operator.reconcile()
        steps.append(world.step)
        world.write()
    assert "EndingControllers" in steps[:-1]
    assert steps[steps.index("EndingControllers") :].count("Starting") > 1
    assert world.lives_in == 0
    await moved(world)


async def test_migration_waits_for_a_turn_and_return_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    start_time = datetime.now(UTC)
    others = [world.other(f"other-{number}", began=start_time) for number in range(4)]
    world.ask_for("Virtual (pool-b)")
    operator = Operator(world, others=others)
    for _ in range(5):
        await operator.reconcile()
    assert world.step is None
    assert "it moves after others: 4 do now" in str(world.object["status"]["conditions"])
    assert operator.migrator.again(world.control_plane, chosen=None) == 30.0
    # A migration that began six minutes ago does not count.
    long_migration = world.other("other-0", began=start_time - timedelta(minutes=6))
    await moved(world, to="Virtual (pool-b)", others=[long_migration, *others[1:]])
    world.ask_for("Virtual")
    await moved(world, to="Virtual", others=others)
    # A completed migration does not exempt the control plane from the limit.
    world.set_spec(migration={"rollbackWindow": "0s"})
    await moved(world, to="Virtual", until="Completed")
    world.ask_for("Virtual (pool-b)")
    operator = Operator(world, others=others)
    for _ in range(5):
        await operator.reconcile()
    assert (world.step, world.lives_in) == (None, 0)
    assert operator.migrator.again(world.control_plane, chosen=None) == 30.0
    await moved(world, to="Virtual (pool-b)", until="Completed")


def test_turns_admit_four_migrations_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    context: Any = SimpleNamespace(stores=SimpleNamespace(control_planes=[]))
    turns = Turns(context)
    world = World(monkeypatch)

    def one(number: int) -> ControlPlane:
        return ControlPlane.model_validate(world.other(f"one-{number}", began=datetime.now(UTC)))

    with contextlib.ExitStack() as stack:
        for number in range(4):
            stack.enter_context(turns.beginning(one(number)))
        with pytest.raises(ConditionError, match="4 do now"):
            stack.enter_context(turns.beginning(one(4)))
    with turns.beginning(one(4)):
        pass


async def test_move_to_other_volume_waits_until_former_home_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, window="10m")
    world.ask_for("Dedicated")
    await moved(world)
    world.ask_for("Dedicated (20Gi)")
    operator = Operator(world)
    for _ in range(10):
        await operator.reconcile()
    assert str(world.control_plane.home) == "Dedicated"
    message = world.object["status"]["migration"]["message"]
    assert message == (
        "moves to Dedicated (20Gi) when the former home, Virtual, is gone, which keeps data for a way back: to go back"
        " there, ask for its mode, volume and data store; to continue, wait for the rollback window"
    )
    world.set_spec(migration={"rollbackWindow": "0s"})
    await moved(world, to="Dedicated (20Gi)", until="Completed")


async def test_cut_time_in_the_future_is_replaced_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, window="10m")
    world.ask_for("Dedicated")
    await moved(world)
    future_time = datetime.now(UTC) + timedelta(days=2)
    world.object["status"]["migration"]["cutTime"] = future_time.isoformat()
    await Operator(world).reconcile()
    cut_time = datetime.fromisoformat(world.object["status"]["migration"]["cutTime"])
    assert cut_time <= datetime.now(UTC)
    assert world.step == "Retaining"
    world.set_spec(migration={"rollbackWindow": "0s"})
    await moved(world, until="Completed")


async def test_cut_succeeds_if_annotations_change_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)

    async def annotate(_: int, name: str) -> None:
        if name == "compare, done":
            world.annotate()

    world.at = annotate
    world.set_spec(mode="Dedicated")
    await moved(world)
    assert world.object["status"]["migration"]["attempts"] == 1


@pytest.mark.parametrize(("when", "revisions", "made_again"), [("", 100, 0), ("prepare, done", 6000, 1)])
async def test_new_home_begins_above_revisions_of_former_home(
    monkeypatch: pytest.MonkeyPatch, when: str, revisions: int, made_again: int
) -> None:
    world, calls = World(monkeypatch), []
    world.write()

    async def others_write(_: int, name: str) -> None:
        # Other control planes in the same etcd write a few keys at each call, or many keys once.
        if not when or (name == when and when not in calls):
            world.homes[0].revision += revisions
        calls.append(name)

    world.at = others_write
    world.set_spec(mode="Dedicated")
    await moved(world, passes=60)
    assert calls.count("write status Preparing") == 1 + made_again
    assert calls.count("settle") == made_again
    assert world.object["status"]["migration"]["attempts"] == 1
    assert world.object["status"]["migration"]["beginsAt"] > world.newest - 1000 > 5000


async def test_failed_stop_of_former_home_does_not_hold_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, window="0s")
    world.faults = {"retire": [AWAY] * 5, "shut down": [AWAY] * 5}
    world.set_spec(mode="Dedicated")
    operator = Operator(world)
    while world.step != "Retaining":
        await operator.reconcile()
        world.control_controllers()
    for _ in range(3):
        await operator.reconcile()
    assert world.step == "Retaining"
    assert (world.server, world.held) == (1, False)
    assert world.object["status"]["migration"]["message"] == AWAY.message
    await settled(world, "Dedicated")
    assert world.step == "Completed"


async def test_abandon_leaves_only_the_home_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    at, deleted = 0, True
    while deleted:
        at += 1
        world = World(monkeypatch)
        world.set_spec(mode="Dedicated")
        deleted = await killed(world, at=at)
        data = dict(world.acknowledged)
        await Operator(world).abandon()
        assert world.homes[1 - world.lives_in] in (Home(), Home(may_write=False)), world.step
        assert world.homes[world.lives_in].data == data


async def test_pause_releases_hold_after_death_at_any_call(monkeypatch: pytest.MonkeyPatch) -> None:
    at, died = 0, True
    while died:
        at += 1
        world = World(monkeypatch)
        world.set_spec(mode="Dedicated")
        died = await killed(world, at=at)
        operator = Operator(world)
        if died and world.lives_in == 0:
            await operator.pause()
            world.learn()
            world.write()
            assert (world.server, world.held, world.copies) == (0, False, {}), world.step
            # If the operator died during the cut, the pause recovers from step Cutting.
            assert world.step != "Cutting"
        await settled(world, "Dedicated")


@pytest.mark.parametrize("step", ["Retaining", "Cutting"])
async def test_migration_begun_with_gateway_ends_without_gateway(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    world = World(monkeypatch, window="0s")

    async def die(_: int, name: str) -> None:
        if name == f"write status {step}, done":
            raise Killed(name)

    world.at = die
    world.set_spec(mode="Dedicated")
    with pytest.raises(Killed):
        await moved(world)
    world.at = None
    mode = world.object["status"]["home"]["mode"]
    world.set_spec(mode=mode)
    operator = Operator(world, gateway=False)
    for _ in range(10):
        await operator.reconcile()
    assert (mode, world.step) == (("Dedicated", "Completed") if step == "Retaining" else ("Virtual", None))
    assert world.homes[world.lives_in].takes_writes
    assert world.homes[1 - world.lives_in] == Home()


@pytest.mark.parametrize("missing", ["fence", "comparison"])
async def test_world_detects_missing_fence_or_comparison(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    async def careless(self: Cutter, control_plane: Any, follower: Any, *, seconds: float) -> Any:
        blind = _Blind() if missing == "comparison" else follower
        cut = await stop_writes(self, control_plane, blind, seconds=seconds)
        if missing == "fence":
            await self._homes(control_plane).set_writable(control_plane, writable=True)
        return cut

    stop_writes: Any = Cutter.stop_writes
    monkeypatch.setattr(Cutter, "stop_writes", careless)
    world = World(monkeypatch)
    world.set_spec(mode="Dedicated")
    with pytest.raises(AssertionError):
        await killed(world, at=1000)


class _Blind:
    """A follower that reports equal homes without a comparison."""

    async def catch_up(self) -> object:
        return SimpleNamespace(equal=True, source=SimpleNamespace(sha256=""))

    async def close(self) -> None:
        pass
