"""Instances that run but do not answer their health check."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest

from kplane.mcm.describe.controllers import component_name
from kplane.mcm.describe.flags import Flags
from kplane.mcm.fleet import Instances
from kplane.mcm.instance.lifecycle import Instance
from kplane.mcm.instance.start_gate import GatePace, Liveness
from kplane.mcm.instance.state import BlockingReason
from kplane.mcm.instance.tenant_lease import TenantLease
from kplane.mcm.instance.turns import StartBudget
from kplane.mcm.reasons import Reason
from kplane.mcm.serving.overview import ClusterSummary, Overview
from kplane.mcm.status.observer import NullReporter
from kplane.provider.fleet.clusters import Clusters
from kplane.workloads import Pace, Phase, ProcessRuntime

from .instances_world import PYTHON, cluster, program

Eventually = Callable[..., Any]
LOOK_SECONDS = 0.05
HEALTH = """
import os, ssl, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(500 if os.path.exists("data/broken") else 200)
        self.end_headers()

if os.path.exists("data/broken"):
    os.unlink("data/broken")
port = next(int(each.partition("=")[2]) for each in sys.argv if each.startswith("--secure-port="))
server = HTTPServer(("127.0.0.1", port), Health)
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain("files/serving.crt", "files/serving.key")
server.socket = tls.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


class World:
    """An instance and its API server. The instance is healthy after each start, until the file `broken` exists."""

    def __init__(self, runtime: ProcessRuntime, *, hung: float, flags: tuple[str, ...]) -> None:
        pace = GatePace(
            look=LOOK_SECONDS,
            retry=LOOK_SECONDS,
            grace=1000.0,
            retry_initial=LOOK_SECONDS,
            hung=hung,
            hung_maximum=1000.0,
        )
        self.observer = create_autospec(NullReporter, instance=True)
        self.budget = StartBudget(at_once=1, longest_seconds=0.05, stagger_seconds=0.0)
        self.instances = Instances(
            runtime,
            observer=self.observer,
            gate_pace=pace,
            budget=self.budget,
            flags=Flags((*PYTHON.arguments, *flags)),
        )
        self.clusters = Clusters(awares=[self.instances])
        self.broken = runtime.log_path(component_name("a")).with_name("data") / "broken"
        self.away = False
        """Whether the API server does not answer."""
        self.looks = 0
        self.written = asyncio.Event()
        """While it is cleared, a webhook holds up each write of the Lease."""
        self.written.set()

    @property
    def summary(self) -> ClusterSummary:
        [summary] = Overview(self.clusters, instances=self.instances).summaries()
        return summary

    @property
    def phase(self) -> Phase:
        [instance] = self.instances.groups["a"]
        return instance.process.phase

    async def look(self, *_: object, **__: object) -> BlockingReason | None:
        self.looks += 1
        await self.written.wait()
        return BlockingReason(Reason.API_SERVER_UNREACHABLE, "it is away") if self.away else None

    async def answers(self, *_: object) -> bool:
        return not self.away


@pytest.fixture
def world_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually) -> Callable[..., Any]:
    """`async with world_of(hung=SECONDS) as world` runs a world whose instance is ready."""
    (tmp_path / "health.py").write_text(HEALTH)
    program(tmp_path, f'exec {sys.executable} {tmp_path / "health.py"} "$@"')

    @contextlib.asynccontextmanager
    async def opened(*, hung: float) -> AsyncIterator[World]:
        pace = Pace(restart_base=0.05, ready_probe=0.05)
        async with ProcessRuntime(tmp_path / "state", programs=[tmp_path], pace=pace) as runtime:
            world = World(runtime, hung=hung, flags=(f"--script={tmp_path}/health.py",))
            monkeypatch.setattr(TenantLease, "acquire", world.look)
            monkeypatch.setattr(TenantLease, "observe", world.answers)
            try:
                await world.clusters.add_or_replace(cluster("a"))
                await eventually(lambda: world.phase is Phase.READY)
                yield world
            finally:
                await world.clusters.aclose()

    return opened


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_hung_instance_is_restarted_and_reported(world_of: Any, eventually: Eventually) -> None:
    async with world_of(hung=0.2) as world:
        pid, began = world.summary.pid, now()
        world.broken.touch()
        await eventually(lambda: world.summary.exits == {"Killed": 1})
        assert now() - began >= 0.2
        await eventually(lambda: world.phase is Phase.READY)
        assert world.summary.pid != pid
        assert world.summary.restarts == 1
        messages = [
            call.kwargs["message"] for call in world.observer.update.call_args_list if call.args[1] is Reason.KILLED
        ]
        assert messages[0].startswith("it did not answer its health check for ")


async def test_hung_instance_is_killed_and_restarted_in_one_turn(
    world_of: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world_of(hung=0.1) as world:
        monkeypatch.setattr(world.budget, "_longest_seconds", 3600.0)
        pid = world.summary.pid
        world.broken.touch()
        await eventually(lambda: world.summary.exits == {"Killed": 1})
        await eventually(lambda: world.phase is Phase.READY)
        assert world.summary.pid != pid


async def test_instance_that_recovers_before_its_turn_is_not_killed(world_of: Any, eventually: Eventually) -> None:
    async with world_of(hung=0.1) as world:
        pid, over = world.summary.pid, asyncio.Event()
        async with world.budget.turn(over=over):
            world.broken.touch()
            await eventually(lambda: world.budget._door.locked())
            world.broken.unlink()
            await eventually(lambda: world.phase is Phase.READY)
            looks = world.looks
            over.set()
        await eventually(lambda: world.looks > looks)
        assert (world.summary.pid, world.summary.exits) == (pid, {})


async def test_lease_of_a_hung_instance_is_renewed_until_its_turn(world_of: Any, eventually: Eventually) -> None:
    async with world_of(hung=0.1) as world:
        over = asyncio.Event()
        async with world.budget.turn(over=over):
            world.broken.touch()
            await eventually(lambda: world.budget._door.locked())
            looks = world.looks
            await eventually(lambda: world.looks > looks + 2)
            assert world.summary.exits == {}
            over.set()
        await eventually(lambda: world.summary.exits == {"Killed": 1})


async def test_hung_instance_is_ended_while_a_webhook_holds_up_its_lease(world_of: Any, eventually: Eventually) -> None:
    async with world_of(hung=0.1) as world:
        over = asyncio.Event()
        async with world.budget.turn(over=over):
            world.broken.touch()
            await eventually(lambda: world.budget._door.locked())
            world.written.clear()
            looks = world.looks
            await eventually(lambda: world.looks > looks)
            over.set()
        await eventually(lambda: world.summary.exits == {"Killed": 1})


async def test_hung_instance_is_kept_while_its_api_server_is_away(world_of: Any, eventually: Eventually) -> None:
    async with world_of(hung=0.2) as world:
        pid, world.away = world.summary.pid, True
        looks = world.looks
        await eventually(lambda: world.looks > looks + 1)
        world.broken.touch()
        await eventually(lambda: world.phase is Phase.UNREADY)
        began = now()
        await eventually(lambda: now() - began > 0.4)
        assert (world.summary.pid, world.summary.exits) == (pid, {})
        began, world.away = now(), False
        await eventually(lambda: world.summary.exits == {"Killed": 1})
        assert now() - began >= 0.2


async def test_hung_instance_is_kept_if_api_server_is_silent_at_its_turn(world_of: Any, eventually: Eventually) -> None:
    async with world_of(hung=0.1) as world:
        pid, over = world.summary.pid, asyncio.Event()
        async with world.budget.turn(over=over):
            world.broken.touch()
            await eventually(lambda: world.budget._door.locked())
            looks, world.away = world.looks, True
            over.set()
        await eventually(lambda: world.looks > looks + 1)
        assert (world.summary.pid, world.summary.exits) == (pid, {})
        assert world.phase is Phase.UNREADY


@pytest.mark.parametrize(("failing", "ended_after"), [(20, 90.0), (8, 110.0), (3, 250.0), (2, None)])
async def test_hung_time_counts_only_while_the_api_server_answers(failing: int, ended_after: float | None) -> None:
    """In each group of `failing` looks, the last look fails. Time counts between two answered looks."""
    liveness, instance, clock = hanging()
    for look in range(1, 200):
        await liveness.review(answered=look % failing != 0, look=answers)
        if instance.end_hung.await_count:
            break
        clock[0] += 10.0
    assert (clock[0] - instance.unready_since if instance.end_hung.await_count else None) == ended_after


async def test_hung_time_starts_again_after_a_recovery() -> None:
    liveness, instance, clock = hanging()
    for _ in range(9):
        await liveness.review(answered=True, look=answers)
        clock[0] += 10.0
    instance.unready_since = clock[0] - 1.0
    await liveness.review(answered=True, look=answers)
    assert instance.end_hung.await_count == 0


def hanging() -> tuple[Liveness, Any, list[float]]:
    """Return a Liveness, its instance, which is unready from now on, and the clock."""
    clock = [1000.0]
    instance = create_autospec(Instance, instance=True, unready_since=clock[0])
    instance.end_hung.return_value = True
    return Liveness(instance, initial_seconds=90.0, maximum_seconds=200.0, now=lambda: clock[0]), instance, clock


async def answers() -> bool:
    return True


async def test_allowed_hung_time_grows_with_repeated_hangs() -> None:
    liveness, instance, clock = hanging()

    async def ended_after() -> float:
        began = instance.unready_since = clock[0]
        ends = instance.end_hung.await_count
        while instance.end_hung.await_count == ends:
            await liveness.review(answered=True, look=answers)
            clock[0] += 10.0
        return clock[0] - 10.0 - began

    assert [await ended_after() for _ in range(4)] == [90.0, 180.0, 200.0, 200.0]
    instance.unready_since = None
    clock[0] += 400.0
    await liveness.review(answered=True, look=answers)
    assert await ended_after() == 90.0
