"""What stands in the way of instances: API servers that are away or broken, and other controller managers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kplane.controlplane_operator.pki.primitives import create_authority, issue_client
from kplane.mcm.instance.api_server_probe import APIServerProbe
from kplane.mcm.instance.state import BlockingReason
from kplane.mcm.reasons import Reason
from kplane.provider import ClusterConfig
from kplane.workloads import ProcessRuntime

from .instances_world import program
from .start_gate_world import NOT_FOUND, PACE, FaultServer, Time, World, lease

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
    made, look = Time(), APIServerProbe.look

    async def counted(probe: APIServerProbe, config: ClusterConfig) -> BlockingReason | None:
        found = await look(probe, config)
        made.answered += found is None
        made.unanswered += found is not None
        return found

    monkeypatch.setattr("kplane.mcm.instance.start_gate._now", lambda: made.now)
    monkeypatch.setattr(APIServerProbe, "look", counted)
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


@pytest.mark.parametrize(
    ("answer", "endless", "words"),
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
    world: World, eventually: Eventually, tmp_path: Path, answer: bytes | None, endless: bool, words: str
) -> None:
    world.server.answer, world.server.endless = answer, endless
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
        world.server.answer, world.server.endless = NOT_FOUND, False
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


async def test_who_came_while_an_instance_waited_for_its_turn_is_seen(
    world: World, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    over = asyncio.Event()
    async with world.budget.turn(over=over):
        await world.add()
        await eventually(lambda: world.budget._door.locked())
        world.server.answer = lease("theirs_1", seconds=600)
        over.set()
    await eventually(lambda: world.heard.last()[0] is Reason.FOREIGN_CONTROLLER_MANAGER)
    assert "started for" not in caplog.text


@pytest.mark.parametrize("waits", [True, False])
async def test_an_api_server_that_takes_longer_to_answer_than_a_turn_has_its_instance(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    monkeypatch.setattr(world.instances, "_gate_pace", replace(PACE, timeout=30.0, fresh=0.0 if waits else 30.0))
    monkeypatch.setattr(world.budget, "_longest_seconds", 0.05)
    world.server.after_seconds = 0.3
    await world.add()
    await eventually(lambda: world.summary().pid)
    assert world.server.asked == (2 if waits else 1)
    assert Reason.API_SERVER_UNREACHABLE not in [reason for _, reason, _ in world.heard.told]


async def test_an_api_server_that_is_silent_as_soon_as_it_is_its_turn_gives_that_up(
    world: World, eventually: Eventually
) -> None:
    over = asyncio.Event()
    async with world.budget.turn(over=over):
        await world.add()
        await eventually(lambda: world.budget._door.locked())
        world.server.answer = None
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
    world.server.answer = lease("theirs_1", seconds=600)
    await eventually(lambda: failed)
    await eventually(lambda: world.summary().pid is None)


async def test_a_look_that_fails_for_whatever_reason_is_not_the_last_one(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: APIServerProbe, __: ClusterConfig) -> None:
        monkeypatch.undo()
        raise RuntimeError("an error of ours")

    monkeypatch.setattr(APIServerProbe, "look", fail)
    await world.add()
    await eventually(lambda: world.summary().pid)


async def test_while_looks_fail_the_reason_is_told_and_what_runs_is_looked_after(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: APIServerProbe, __: ClusterConfig) -> None:
        raise RecursionError("an error of ours about\nwhat a tenant sent")

    await world.add()
    pid = await eventually(lambda: world.summary().pid)
    monkeypatch.setattr(APIServerProbe, "look", fail)
    began = asyncio.get_running_loop().time()
    await eventually(lambda: world.summary().pid is None)
    assert asyncio.get_running_loop().time() - began >= PACE.grace
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


async def test_a_refusal_is_left_to_the_instance_to_tell(world: World, eventually: Eventually) -> None:
    world.server.answer = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\n{}"
    await world.add()
    await eventually(lambda: world.summary().pid)


async def test_another_controller_manager_keeps_the_instance_away_until_its_lease_has_run_out(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("kplane.mcm.fleet.APIServerProbe", functools.partial(APIServerProbe, now=lambda: now[0]))
    world.server.answer = lease("theirs_1", seconds=15)
    await world.add()
    await eventually(lambda: world.heard.last()[0] is Reason.FOREIGN_CONTROLLER_MANAGER)
    assert "'theirs_1' holds the Lease kube-system/kube-controller-manager" in world.heard.last()[1]
    for _ in range(3):  # it is renewed every 10 s
        now[0] += 10.0
        world.server.answer = lease("theirs_1", seconds=15)
        asked = world.server.asked
        await eventually(lambda asked=asked: world.server.asked > asked + 1)
        assert world.summary().pid is None
    now[0] += 15.1
    await eventually(lambda: world.summary().pid)
    # It comes back, and is the one that works then.
    world.server.answer = lease("theirs_2")
    await eventually(lambda: world.summary().pid is None)
    assert world.heard.last()[0] is Reason.FOREIGN_CONTROLLER_MANAGER
    # A Lease that is given back is free at once.
    world.server.answer = lease("", seconds=600)
    await eventually(lambda: world.summary().pid)


@pytest.mark.parametrize(
    ("answer", "free_after"),
    [
        (lease("gone", renewed=datetime.now(UTC) - timedelta(hours=1), seconds=600), 0.0),
        (lease("slow clock", renewed=datetime.now(UTC) - timedelta(minutes=5), seconds=15), 15.0),
        (lease("fast clock", renewed=datetime.now(UTC) + timedelta(days=1), seconds=15), 15.0),
        (lease("long", seconds=10**9), 600.0),
        (lease("negative", seconds=-1), 15.0),
    ],
    ids=["abandoned", "slow clock", "fast clock", "too long", "negative"],
)
async def test_a_lease_counts_by_the_clock_of_mcm(world: World, answer: bytes, free_after: float) -> None:
    now = [0.0]
    probe = APIServerProbe("kube-controller-manager", now=lambda: now[0])
    world.server.answer = answer
    try:
        first = await probe.look(world.server.config)
        assert (first is None) == (free_after == 0.0)
        now[0] = free_after
        assert (await probe.look(world.server.config) is None) == (free_after == 0.0)
        now[0] = free_after + 0.1
        assert await probe.look(world.server.config) is None
    finally:
        await probe.aclose()


async def test_a_lease_with_more_in_it_than_any_has_is_judged_by_its_holder(world: World) -> None:
    spec = b'{"holderIdentity":"theirs","x":%s%s}' % (b"[" * 1000, b"]" * 1000)
    body = b'{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"a"},"spec":%s}' % spec
    world.server.answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    async with contextlib.aclosing(APIServerProbe("kube-controller-manager")) as probe:
        found = await probe.look(world.server.config)
    assert found is not None
    assert found.reason is Reason.FOREIGN_CONTROLLER_MANAGER
