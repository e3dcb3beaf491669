"""Conditions that block instances: API servers that are away or broken, and other controller managers."""

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
    world = World(runtime, tmp_path)
    await world.server.start()
    try:
        yield world
    finally:
        await world.clusters.aclose()
        await world.server.stop()


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    fake_time, acquire = Time(), TenantLease.acquire

    async def counted(lease: TenantLease, config: ClusterConfig, **limits: Any) -> BlockingReason | None:
        reason = await acquire(lease, config, **limits)
        fake_time.answered += reason is None
        fake_time.unanswered += reason is not None
        return reason

    for module in ("start_gate", "start_permit"):
        monkeypatch.setattr(f"kplane.mcm.instance.{module}._now", lambda: fake_time.now)
    monkeypatch.setattr(TenantLease, "acquire", counted)
    return fake_time


async def test_instance_stops_after_grace_and_returns_with_its_api_server(
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


async def test_instance_survives_an_outage_shorter_than_the_grace(
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


async def test_instance_starts_and_runs_though_a_webhook_delays_writes(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.instances, "_gate_pace", replace(PACE, timeout=0.1, grace=2.0))
    guarded(world.server.leases)
    world.server.write_after_seconds = 0.5
    await world.add()
    # The observer hears which webhook delays the start, as after a move.
    await eventually(lambda: world.heard.last()[0] is Reason.WEBHOOK_REFUSED)
    assert "'guard.example.com' of ValidatingWebhookConfiguration guard-0" in world.heard.last()[1]
    pid = await eventually(lambda: world.summary().pid)
    holder, renewed = world.server.leases.holder(), world.server.leases.renewed()
    await eventually(lambda: world.server.leases.renewed() > renewed)
    assert (world.server.leases.holder(), world.summary().pid) == (holder, pid)


async def test_instance_stopped_by_a_webhook_names_it_and_returns(
    world: World, time: Time, eventually: Eventually
) -> None:
    guarded(world.server.leases, policy="Fail")
    await world.add()
    await eventually(lambda: world.summary().pid)
    failure = 'Internal error occurred: failed calling webhook "guard.example.com": failed to call webhook'
    world.server.leases.refusal = answer("500 Error", {"kind": "Status", "message": failure, "code": 500})
    await eventually(lambda: time.unanswered > 1)
    time.now += PACE.grace + 0.01
    await eventually(lambda: world.summary().pid is None)
    reason, message = world.heard.last()
    assert reason is Reason.WEBHOOK_REFUSED
    assert failure in message
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
async def test_broken_api_server_blocks_only_its_own_instance(
    world: World, eventually: Eventually, tmp_path: Path, given: bytes | None, endless: bool, words: str
) -> None:
    world.server.answer, world.server.endless = given, endless
    good_server = FaultServer(tmp_path)
    await good_server.start()
    try:
        await world.add()
        await world.add("good", good_server.config)
        pid = await eventually(lambda: world.summary("good").pid)
        await eventually(lambda: world.heard.last()[0] is Reason.API_SERVER_UNREACHABLE)
        assert words in world.heard.last()[1]
        assert world.summary().pid is None
        assert world.summary("good").pid == pid
        # mcm notices the repaired API server by itself.
        world.server.answer, world.server.endless = world.server.leases, False
        await eventually(lambda: world.summary().pid)
    finally:
        await good_server.stop()


async def test_wrong_ca_is_reported_and_the_right_ca_starts_the_instance(world: World, eventually: Eventually) -> None:
    foreign = replace(world.server.config, ca_data=create_authority("foreign").certificate)
    await world.add(config=foreign)
    await eventually(lambda: world.heard.last()[0] is Reason.API_SERVER_UNREACHABLE)
    assert "certificate" in world.heard.last()[1]
    await world.add()
    await eventually(lambda: world.summary().pid)


async def test_requests_to_a_dead_control_plane_back_off(world: World, eventually: Eventually) -> None:
    world.server.answer = b"HTTP/1.1 500 Error\r\nContent-Length: 0\r\n\r\n"
    await world.add()
    await eventually(lambda: world.server.asked > 4)
    before, began = world.server.asked, asyncio.get_running_loop().time()
    await eventually(lambda: world.server.asked > before + 2)
    seconds = asyncio.get_running_loop().time() - began
    # Waits are now between 0.1 and 0.2 s.
    assert world.server.asked - before <= 2 * seconds / PACE.retry_maximum + 1


async def test_lease_taken_during_a_long_wait_for_a_turn_blocks_start(
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


async def test_late_turn_needs_no_write_while_the_lease_is_held(
    world: World, time: Time, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A webhook has become slow when a late turn comes. The Lease from before the turn is enough."""
    monkeypatch.setattr(world.instances, "_gate_pace", replace(PACE, grace=20.0))
    guarded(world.server.leases)
    over, asked_at_start = asyncio.Event(), list[int]()
    watchdog = AsyncMock(side_effect=lambda: asked_at_start.append(world.server.asked))
    monkeypatch.setattr(world.instances, "_watchdog", watchdog)
    async with world.budget.turn(over=over):
        await world.add()
        await eventually(lambda: world.budget._door.locked())
        requests, world.server.write_after_seconds = world.server.asked, 60.0
        time.now += 9.9
        over.set()
    await eventually(lambda: asked_at_start)
    assert asked_at_start == [requests]


async def test_api_server_slower_than_a_turn_still_gets_its_instance(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.instances, "_gate_pace", replace(PACE, timeout=30.0, grace=60.0))
    monkeypatch.setattr(world.budget, "_longest_seconds", 0.05)
    world.server.after_seconds = 0.3
    await world.add()
    await eventually(lambda: world.summary().pid)
    assert Reason.API_SERVER_UNREACHABLE not in [reason for _, reason, _ in world.heard.told]


async def test_silent_api_server_releases_its_turn(world: World, time: Time, eventually: Eventually) -> None:
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


async def test_failed_stop_of_an_instance_is_retried(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.add()
    await eventually(lambda: world.summary().pid)
    failures: list[str] = []

    async def fail(name: str) -> None:
        failures.append(name)
        monkeypatch.undo()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(world.runtime, "stop", fail)
    world.server.leases.hold("theirs_1", seconds=600)
    await eventually(lambda: failures)
    await eventually(lambda: world.summary().pid is None)


async def test_look_is_retried_after_an_unexpected_error(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: TenantLease, __: ClusterConfig, **___: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("an error of ours")

    monkeypatch.setattr(TenantLease, "acquire", fail)
    await world.add()
    await eventually(lambda: world.summary().pid)


async def test_failing_looks_stop_the_instance_after_grace_with_a_reason(
    world: World, time: Time, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    async def fail(*_: object, **__: object) -> None:
        looks.append(None)
        raise RecursionError("an error of ours about\nwhat a tenant sent")

    await world.add()
    pid = await eventually(lambda: world.summary().pid)
    monkeypatch.setattr(TenantLease, "acquire", fail)
    await eventually(lambda: len(looks) > 2)
    assert world.summary().pid == pid
    time.now += PACE.grace
    await eventually(lambda: world.summary().pid is None)
    reason, message = world.heard.last()
    assert (reason, "RecursionError" in message, "tenant sent" in message) == (Reason.CANNOT_START, True, False)
    monkeypatch.undo()
    assert await eventually(lambda: world.summary().pid) != pid


async def test_unusable_kubeconfig_is_reported_as_cannot_start(world: World, eventually: Eventually) -> None:
    client, other_client = (issue_client(world.server.authority, user="mcm") for _ in range(2))
    pair = replace(world.server.config, token=None, client_certificate=client.certificate, client_key=client.key)
    await world.add(config=replace(pair, client_key=other_client.key))
    await eventually(lambda: world.heard.last()[0] is Reason.CANNOT_START)
    assert "client-certificate-data and client-key-data" in world.heard.last()[1]
    assert world.server.asked == 0
    # The corrected kubeconfig is tried at once.
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
async def test_refused_lease_access_blocks_instance_and_names_remedy(
    world: World, time: Time, eventually: Eventually, refused: str, words: list[str]
) -> None:
    refusal = answer(refused, {"kind": "Status", "message": "no"})
    world.server.answer = refusal
    await world.add()
    await eventually(lambda: world.heard.last()[0] is Reason.CANNOT_START)
    assert all(word in world.heard.last()[1] for word in words)
    assert world.summary().pid is None
    world.server.answer = world.server.leases
    pid = await eventually(lambda: world.summary().pid)
    # A short refusal does not stop the instance. A long refusal stops it before the Lease runs out.
    world.server.answer = refusal
    looks = time.unanswered
    time.now += PACE.grace - 0.01
    await eventually(lambda: time.unanswered > looks + 1)
    assert world.summary().pid == pid
    time.now += 0.02
    await eventually(lambda: world.summary().pid is None)


async def test_instance_holds_the_lease_and_releases_it_after_its_end(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = world.server.leases
    stop, holders = world.runtime.stop, []

    async def stopped(name: str) -> None:
        await stop(name)
        holders.append(leases.holder())

    monkeypatch.setattr(world.runtime, "stop", stopped)
    await world.add()
    await eventually(lambda: world.summary().pid)
    first = leases.specs["kube-controller-manager"]
    assert first["holderIdentity"].startswith("kube-controller-manager_")
    assert first["leaseDurationSeconds"] == 120
    await eventually(lambda: leases.specs["kube-controller-manager"]["renewTime"] > first["renewTime"])
    await world.clusters.remove("a")
    # Otherwise a foreign program could start before the instance has ended.
    assert holders == [first["holderIdentity"]]
    assert leases.holder() == ""


async def test_instance_stops_and_leaves_the_lease_to_a_new_holder(world: World, eventually: Eventually) -> None:
    await world.add()
    await eventually(lambda: world.summary().pid)
    world.server.leases.hold("theirs", seconds=600)
    await eventually(lambda: world.summary().pid is None)
    assert world.heard.last()[0] is Reason.FOREIGN_CONTROLLER_MANAGER
    await world.clusters.remove("a")
    assert world.server.leases.holder() == "theirs"


async def test_deleted_lease_is_recreated_and_its_instance_goes_on(world: World, eventually: Eventually) -> None:
    await world.add()
    pid = await eventually(lambda: world.summary().pid)
    world.server.leases.delete("kube-controller-manager")
    await eventually(lambda: world.server.leases.holder())
    assert world.summary().pid == pid


async def test_lease_with_a_cleared_holder_is_acquired_again(world: World, eventually: Eventually) -> None:
    await world.add()
    pid = await eventually(lambda: world.summary().pid)
    world.server.leases.hold("", seconds=60)
    await eventually(lambda: world.server.leases.holder())
    assert world.summary().pid == pid


async def test_instance_starts_only_after_the_watchdog_confirms(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    holders = []

    async def watchdog() -> None:
        holders.append(world.server.leases.holder())
        if len(holders) < 3:
            raise RuntimeFailure("there is no watchdog")

    monkeypatch.setattr(world.instances, "_watchdog", watchdog)
    await world.add()
    await eventually(lambda: world.heard.last() == (Reason.CANNOT_START, "there is no watchdog"))
    await eventually(lambda: world.summary().pid)
    assert len(holders) == 3
    assert all(holders)


async def test_foreign_lease_blocks_the_instance_until_it_expires(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("kplane.mcm.fleet.TenantLease", functools.partial(TenantLease, now=lambda: now[0]))
    leases = world.server.leases
    leases.hold("theirs_1", seconds=15)
    await world.add()
    await eventually(lambda: world.heard.last()[0] is Reason.FOREIGN_CONTROLLER_MANAGER)
    assert "'theirs_1' holds the Lease kube-system/kube-controller-manager" in world.heard.last()[1]
    for _ in range(3):  # the foreign holder renews the Lease every 10 s
        now[0] += 10.0
        leases.hold("theirs_1", seconds=15)
        asked = world.server.asked
        await eventually(lambda asked=asked: world.server.asked > asked + 1)
        assert world.summary().pid is None
    now[0] += 15.1
    await eventually(lambda: world.summary().pid)
    # The foreign holder comes back and takes over.
    leases.hold("theirs_2", seconds=600)
    await eventually(lambda: world.summary().pid is None)
    assert world.heard.last()[0] is Reason.FOREIGN_CONTROLLER_MANAGER
    # A Lease that is released is free at once.
    leases.hold("", seconds=600)
    await eventually(lambda: world.summary().pid)
