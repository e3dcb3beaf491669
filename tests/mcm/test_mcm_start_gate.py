"""What stands in the way of instances: API servers that are away or broken, and other controller managers."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from kplane.mcm.instance.state import BlockingReason
from kplane.mcm.instance.tenant_lease import TenantLease
from kplane.mcm.reasons import Reason
from kplane.pki.primitives import create_authority, issue_client
from kplane.provider import ClusterConfig
from kplane.workloads import ProcessRuntime, RuntimeFailure

from .instances_world import program
from .start_gate_world import PACE, FaultServer, Time, World, answer, guarded

Eventually = Callable[..., Any]


@pytest.fixture
async def world(runtime: ProcessRuntime, tmp_path: Path) -> AsyncIterator[World]:
    program(tmp_path)
    found = World(runtime, tmp_path)
    await found.server.start()
    try:
        yield found
    finally:
        await found.clusters.aclose()
        await found.server.stop()


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made, look = Time(), TenantLease.look

    async def counted(lease: TenantLease, config: ClusterConfig, **limits: Any) -> BlockingReason | None:
        found = await look(lease, config, **limits)
        made.answered += found is None
        made.unanswered += found is not None
        return found

    monkeypatch.setattr("kplane.mcm.instance.start_gate._now", lambda: made.now)
    monkeypatch.setattr(TenantLease, "look", counted)
    return made


async def test_an_instance_ends_after_the_grace_and_comes_back_with_its_api_server(
    world: World, time: Time, eventually: Eventually
) -> None:
    await world.add()
    pid = await eventually(lambda: world.summary().pid)
    await world.server.stop()
    await eventually(lambda: time.unanswered > 1)
    time.now += PACE.grace - 0.01
    looks = time.unanswered
    await eventually(lambda: time.unanswered > looks + 1)
    assert world.summary().pid == pid
    time.now += 0.02
    await eventually(lambda: world.summary().pid is None)
    reason, message = world.heard.last()
    assert reason is Reason.API_SERVER_UNREACHABLE
    assert world.server.config.server in message
    assert world.summary().message == message
    assert world.summary().exits == {}
    await world.server.start()
    assert await eventually(lambda: world.summary().pid) != pid
    await eventually(lambda: world.heard.last()[0] is Reason.STARTING)


async def test_an_api_server_that_is_back_in_time_costs_nothing(
    world: World, time: Time, eventually: Eventually
) -> None:
    await world.add()
    pid = await eventually(lambda: world.summary().pid)
    for _ in range(2):
        await world.server.stop()
        looks = time.unanswered
        await eventually(lambda looks=looks: time.unanswered > looks)
        time.now += 0.6 * PACE.grace
        await eventually(lambda looks=looks: time.unanswered > looks + 2)
        looks = time.answered
        await world.server.start()
        await eventually(lambda looks=looks: time.answered > looks + 1)
    assert world.summary().pid == pid


async def test_an_instance_runs_on_and_starts_though_a_webhook_holds_up_each_write(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.instances, "_gate_pace", replace(PACE, timeout=0.1, grace=2.0))
    guarded(world.server.leases)
    world.server.write_after_seconds = 0.5
    await world.add()
    # It says what its start waits for, as after a move.
    await eventually(lambda: world.heard.last()[0] is Reason.WEBHOOK_REFUSED)
    assert "'guard.example.com' of ValidatingWebhookConfiguration guard-0" in world.heard.last()[1]
    pid = await eventually(lambda: world.summary().pid)
    holder, renewed = world.server.leases.holder(), world.server.leases.renewed()
    await eventually(lambda: world.server.leases.renewed() > renewed)
    assert (world.server.leases.holder(), world.summary().pid) == (holder, pid)


async def test_an_instance_that_a_webhook_ends_names_it_and_comes_back(
    world: World, time: Time, eventually: Eventually
) -> None:
    guarded(world.server.leases, policy="Fail")
    await world.add()
    await eventually(lambda: world.summary().pid)
    said = 'Internal error occurred: failed calling webhook "guard.example.com": failed to call webhook'
    world.server.leases.refusal = answer("500 Error", {"kind": "Status", "message": said, "code": 500})
    await eventually(lambda: time.unanswered > 1)
    time.now += PACE.grace + 0.01
    await eventually(lambda: world.summary().pid is None)
    reason, message = world.heard.last()
    assert reason is Reason.WEBHOOK_REFUSED
    assert said in message
    world.server.leases.refusal = None
    await eventually(lambda: world.summary().pid)


@pytest.mark.parametrize(
    ("given", "endless", "words"),
    [
        (None, False, "no answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{{{", False, "JSON"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", False, "does not answer"),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", False, "answers 503"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n", True, "more than"),
    ],
    ids=["silent", "garbage", "other protocol", "unavailable", "flood"],
)
async def test_no_instance_runs_for_a_broken_api_server_and_the_others_do_not_notice(
    world: World, eventually: Eventually, tmp_path: Path, given: bytes | None, endless: bool, words: str
) -> None:
    world.server.answer, world.server.endless = given, endless
    good = FaultServer(tmp_path)
    await good.start()
    try:
        await world.add()
        await world.add("good", good.config)
        pid = await eventually(lambda: world.summary("good").pid)
        await eventually(lambda: world.heard.last()[0] is Reason.API_SERVER_UNREACHABLE)
        assert words in world.heard.last()[1]
        assert world.summary().pid is None
        assert world.summary("good").pid == pid
        # What it is mended to is seen without anybody's help.
        world.server.answer, world.server.endless = world.server.leases, False
        await eventually(lambda: world.summary().pid)
    finally:
        await good.stop()


async def test_a_wrong_certificate_is_told_and_the_right_ca_is_tried_at_once(
    world: World, eventually: Eventually
) -> None:
    foreign = replace(world.server.config, ca_data=create_authority("foreign").certificate)
    await world.add(config=foreign)
    await eventually(lambda: world.heard.last()[0] is Reason.API_SERVER_UNREACHABLE)
    assert "certificate" in world.heard.last()[1]
    await world.add()
    await eventually(lambda: world.summary().pid)


async def test_a_dead_control_plane_is_asked_less_and_less(world: World, eventually: Eventually) -> None:
    world.server.answer = b"HTTP/1.1 500 Error\r\nContent-Length: 0\r\n\r\n"
    await world.add()
    await eventually(lambda: world.server.asked > 4)
    before, began = world.server.asked, asyncio.get_running_loop().time()
    await eventually(lambda: world.server.asked > before + 2)
    seconds = asyncio.get_running_loop().time() - began
    # Waits are between 0.1 and 0.2 s by now.
    assert world.server.asked - before <= 2 * seconds / PACE.retry_maximum + 1


async def test_who_came_while_an_instance_waited_long_for_its_turn_is_seen(
    world: World, time: Time, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    over = asyncio.Event()
    async with world.budget.turn(over=over):
        await world.add()
        await eventually(lambda: world.budget._door.locked())
        world.server.leases.hold("theirs_1", seconds=600)
        time.now += PACE.grace / 2
        over.set()
    await eventually(lambda: world.heard.last()[0] is Reason.FOREIGN_CONTROLLER_MANAGER)
    assert "started for" not in caplog.text


async def test_instance_starts_in_its_turn_without_another_write_while_its_lease_is_held(
    world: World, time: Time, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn that comes late finds a webhook that is slow by now: the Lease from before the turn is enough."""
    monkeypatch.setattr(world.instances, "_gate_pace", replace(PACE, grace=20.0))
    guarded(world.server.leases)
    over = asyncio.Event()
    async with world.budget.turn(over=over):
        await world.add()
        await eventually(lambda: world.budget._door.locked())
        asked, world.server.write_after_seconds = world.server.asked, 60.0
        time.now += 9.9
        asked_at_start = list[int]()
        monkeypatch.setattr(
            world.instances, "_admit", AsyncMock(side_effect=lambda: asked_at_start.append(world.server.asked))
        )
        over.set()
    await eventually(lambda: asked_at_start)
    assert asked_at_start == [asked]


async def test_an_api_server_that_takes_longer_to_answer_than_a_turn_has_its_instance(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.instances, "_gate_pace", replace(PACE, timeout=30.0, grace=60.0))
    monkeypatch.setattr(world.budget, "_longest_seconds", 0.05)
    world.server.after_seconds = 0.3
    await world.add()
    await eventually(lambda: world.summary().pid)
    assert Reason.API_SERVER_UNREACHABLE not in [reason for _, reason, _ in world.heard.told]


async def test_an_api_server_that_is_silent_as_soon_as_it_is_its_turn_gives_that_up(
    world: World, time: Time, eventually: Eventually
) -> None:
    over = asyncio.Event()
    async with world.budget.turn(over=over):
        await world.add()
        await eventually(lambda: world.budget._door.locked())
        world.server.answer = None
        time.now += PACE.grace / 2
        over.set()
    await eventually(lambda: world.heard.last()[0] is Reason.API_SERVER_UNREACHABLE)
    async with asyncio.timeout(60.0), world.budget.turn(over=over):
        assert world.summary().pid is None


async def test_an_instance_that_cannot_be_ended_is_tried_again(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.add()
    await eventually(lambda: world.summary().pid)
    failed: list[str] = []

    async def fail(name: str) -> None:
        failed.append(name)
        monkeypatch.undo()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(world.runtime, "stop", fail)
    world.server.leases.hold("theirs_1", seconds=600)
    await eventually(lambda: failed)
    await eventually(lambda: world.summary().pid is None)


async def test_a_look_that_fails_for_whatever_reason_is_not_the_last_one(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: TenantLease, __: ClusterConfig, **___: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("an error of ours")

    monkeypatch.setattr(TenantLease, "look", fail)
    await world.add()
    await eventually(lambda: world.summary().pid)


async def test_while_looks_fail_the_reason_is_told_and_what_runs_is_looked_after(
    world: World, time: Time, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    async def fail(*_: object, **__: object) -> None:
        looks.append(None)
        raise RecursionError("an error of ours about\nwhat a tenant sent")

    await world.add()
    pid = await eventually(lambda: world.summary().pid)
    monkeypatch.setattr(TenantLease, "look", fail)
    await eventually(lambda: len(looks) > 2)
    assert world.summary().pid == pid
    time.now += PACE.grace
    await eventually(lambda: world.summary().pid is None)
    reason, message = world.heard.last()
    assert (reason, "RecursionError" in message, "tenant sent" in message) == (Reason.CANNOT_START, True, False)
    monkeypatch.undo()
    assert await eventually(lambda: world.summary().pid) != pid


async def test_a_kubeconfig_that_cannot_be_used_is_not_called_a_silent_api_server(
    world: World, eventually: Eventually
) -> None:
    one, other = (issue_client(world.server.authority, user="mcm") for _ in range(2))
    pair = replace(world.server.config, token=None, client_certificate=one.certificate, client_key=one.key)
    await world.add(config=replace(pair, client_key=other.key))
    await eventually(lambda: world.heard.last()[0] is Reason.CANNOT_START)
    assert "client-certificate-data and client-key-data" in world.heard.last()[1]
    assert world.server.asked == 0
    # What it is mended to is tried at once.
    await world.add(config=pair)
    await eventually(lambda: world.summary().pid)


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (
            "401 Unauthorized",
            ["refuses the credentials in its Secret", "renew them"],
        ),
        (
            "403 Forbidden",
            [
                "the Lease kube-system/kube-controller-manager",
                "allow the identity in its Secret to get, create and update",
            ],
        ),
    ],
)
async def test_who_may_not_hold_the_lease_has_no_instance_and_is_told_what_to_do(
    world: World, time: Time, eventually: Eventually, refused: str, words: list[str]
) -> None:
    refusal = answer(refused, {"kind": "Status", "message": "no"})
    world.server.answer = refusal
    await world.add()
    await eventually(lambda: world.heard.last()[0] is Reason.CANNOT_START)
    assert all(each in world.heard.last()[1] for each in words)
    assert world.summary().pid is None
    world.server.answer = world.server.leases
    pid = await eventually(lambda: world.summary().pid)
    # A refusal in passing ends no instance; one that lasts does, before the Lease runs out.
    world.server.answer = refusal
    looks = time.unanswered
    time.now += PACE.grace - 0.01
    await eventually(lambda: time.unanswered > looks + 1)
    assert world.summary().pid == pid
    time.now += 0.02
    await eventually(lambda: world.summary().pid is None)


async def test_an_instance_runs_under_the_lease_and_releases_it_after_its_end(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = world.server.leases
    stop, held = world.runtime.stop, []

    async def stopped(name: str) -> None:
        await stop(name)
        held.append(leases.holder())

    monkeypatch.setattr(world.runtime, "stop", stopped)
    await world.add()
    await eventually(lambda: world.summary().pid)
    first = leases.specs["kube-controller-manager"]
    assert first["holderIdentity"].startswith("kube-controller-manager_")
    assert first["leaseDurationSeconds"] == 120
    await eventually(lambda: leases.specs["kube-controller-manager"]["renewTime"] > first["renewTime"])
    await world.clusters.remove("a")
    # A program of somebody else could begin before the end of the instance otherwise.
    assert held == [first["holderIdentity"]]
    assert leases.holder() == ""


async def test_an_instance_whose_lease_is_taken_makes_way_and_leaves_that_lease_alone(
    world: World, eventually: Eventually
) -> None:
    await world.add()
    await eventually(lambda: world.summary().pid)
    world.server.leases.hold("theirs", seconds=600)
    await eventually(lambda: world.summary().pid is None)
    assert world.heard.last()[0] is Reason.FOREIGN_CONTROLLER_MANAGER
    await world.clusters.remove("a")
    assert world.server.leases.holder() == "theirs"


async def test_a_deleted_lease_is_made_again_and_its_instance_goes_on(world: World, eventually: Eventually) -> None:
    await world.add()
    pid = await eventually(lambda: world.summary().pid)
    world.server.leases.delete("kube-controller-manager")
    await eventually(lambda: world.server.leases.holder())
    assert world.summary().pid == pid


async def test_a_lease_whose_holder_was_edited_away_is_taken_again(world: World, eventually: Eventually) -> None:
    await world.add()
    pid = await eventually(lambda: world.summary().pid)
    world.server.leases.hold("", seconds=60)
    await eventually(lambda: world.server.leases.holder())
    assert world.summary().pid == pid


async def test_nothing_starts_before_it_would_be_killed_in_time(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []

    async def admit() -> None:
        held.append(world.server.leases.holder())
        if len(held) < 3:
            raise RuntimeFailure("there is no watchdog")

    monkeypatch.setattr(world.instances, "_admit", admit)
    await world.add()
    await eventually(lambda: world.heard.last() == (Reason.CANNOT_START, "there is no watchdog"))
    await eventually(lambda: world.summary().pid)
    assert len(held) == 3
    assert all(held)


async def test_another_controller_manager_keeps_the_instance_away_until_its_lease_has_run_out(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("kplane.mcm.fleet.TenantLease", functools.partial(TenantLease, now=lambda: now[0]))
    leases = world.server.leases
    leases.hold("theirs_1", seconds=15)
    await world.add()
    await eventually(lambda: world.heard.last()[0] is Reason.FOREIGN_CONTROLLER_MANAGER)
    assert "'theirs_1' holds the Lease kube-system/kube-controller-manager" in world.heard.last()[1]
    for _ in range(3):  # it is renewed every 10 s
        now[0] += 10.0
        leases.hold("theirs_1", seconds=15)
        asked = world.server.asked
        await eventually(lambda asked=asked: world.server.asked > asked + 1)
        assert world.summary().pid is None
    now[0] += 15.1
    await eventually(lambda: world.summary().pid)
    # It comes back, and is the one that works then.
    leases.hold("theirs_2", seconds=600)
    await eventually(lambda: world.summary().pid is None)
    assert world.heard.last()[0] is Reason.FOREIGN_CONTROLLER_MANAGER
    # A Lease that is released is free at once.
    leases.hold("", seconds=600)
    await eventually(lambda: world.summary().pid)
