"""Data plane: requests that wait for new routes in Envoy, holds, and causes of a failing Envoy."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock, create_autospec

import pytest

from kplane.binaries.envoy import find_envoy
from kplane.gateway import data_plane
from kplane.gateway.data_plane import DataPlane
from kplane.gateway.routes import Hold
from kplane.gateway.waker import Waker
from kplane.workloads import ComponentState, Phase, ProcessRuntime

from .fleet import no_waker, route, serving


async def test_requests_wait_only_for_control_planes_that_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waker = no_waker()
    plane = DataPlane(tmp_path / "g", validate=AsyncMock(), program=Path("envoy"), runtime=None, waker=waker)
    monkeypatch.setattr(plane, "ready", AsyncMock(return_value=True))
    async with plane.running():
        assert await plane.apply([route(name) for name in "abc"], serving=serving()) == {}
        moved = {name: route(name, port=7443) for name in "ab"}
        for name, new_route in moved.items():
            plane.update({name: new_route})
        waiters = [asyncio.create_task(waker.passage(f"uid-{name}")) for name in "ab"]
        await waker.passage("uid-c")
        await asyncio.sleep(0)
        assert waker.waiting == 2
        assert await plane.apply([*moved.values(), route("c")], serving=serving()) == {}
        assert await asyncio.gather(*waiters) == [*moved.values()]


async def test_quiet_omits_hold_after_deadline_or_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = until = datetime(2026, 11, 23, 12, tzinfo=UTC)
    waker = Waker(AsyncMock(), clock=lambda: now)
    plane = DataPlane(tmp_path / "g", validate=AsyncMock(), program=Path("envoy"), runtime=None, waker=waker)
    monkeypatch.setattr(plane, "ready", AsyncMock(return_value=True))
    numbers = AsyncMock(return_value={})
    monkeypatch.setattr(plane, "numbers", numbers)
    held_route = replace(route("a"), held=Hold(until=until, asked="noon"))
    async with plane.running():
        now = until - timedelta(seconds=1)
        await plane.apply([held_route], serving=serving())
        assert await plane.quiet() == {"uid-a": "noon"}
        now = until
        assert (await plane.quiet(), plane.held) == ({}, {})
        now = until - timedelta(seconds=1)

        async def lifted() -> dict[str, int]:
            await plane.apply([route("a")], serving=serving())
            return {}

        # Envoy gets a table without holds while it returns its counters.
        numbers.side_effect = lifted
        assert await plane.quiet() == {}


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.BACKOFF, None])
async def test_failure_checks_inotify_once_while_envoy_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: Phase | None
) -> None:
    """The check briefly takes instances that a starting Envoy needs. Without a runtime, elapsed time decides."""
    looks = Mock(return_value="5 instances more are needed")
    monkeypatch.setattr(data_plane, "inotify_shortage", looks)
    runtime = create_autospec(ProcessRuntime, instance=True) if phase is not None else None
    if runtime is not None:
        runtime.state.return_value = ComponentState(name="envoy", phase=phase or Phase.ABSENT)
    envoy = tmp_path / "envoy"
    envoy.touch()
    plane = DataPlane(tmp_path / "g", validate=AsyncMock(), program=envoy, runtime=runtime, waker=Waker(AsyncMock()))
    async with plane.running():
        failures = {await plane.failure() for _ in range(3)}
        assert looks.call_count == (phase is Phase.BACKOFF)
        assert failures == {"5 instances more are needed" if phase is Phase.BACKOFF else ""}
        if phase is None:
            monkeypatch.setattr(data_plane, "_START_SECONDS", 0.0)
            failures = {await plane.failure() for _ in range(3)}
            assert (looks.call_count, failures) == (1, {"5 instances more are needed"})


@pytest.mark.integration
async def test_failure_names_inotify_limit_and_fatal_line_of_envoy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Any, few_inotify_instances: Any
) -> None:
    """Runs the real Envoy in a user namespace without inotify instances."""
    *prefix, name = few_inotify_instances(0)
    envoy = tmp_path / "envoy"
    envoy.write_text(f'#!/bin/sh\nexec {shlex.join([*prefix, name, str(find_envoy())])} "$@"\n')
    envoy.chmod(0o755)
    monkeypatch.setattr(data_plane, "inotify_shortage", lambda needed: f"{needed} instances more are needed")
    directory = Path(tempfile.mkdtemp(prefix="kplane-g-"))
    async with ProcessRuntime(directory / "runtime", programs=[]) as runtime:
        plane = DataPlane(
            directory / "g", validate=AsyncMock(), program=envoy, runtime=runtime, waker=Waker(AsyncMock())
        )
        async with plane.running():
            message = await eventually(plane.failure, lambda failure: "last fatal line" in failure)
            await plane.stop()
    shutil.rmtree(directory)
    assert message.startswith("5 instances more are needed; Envoy was ended by signal SIGABRT after ")
    assert "assert failure: inotify_fd_ >= 0" in message
