"""A process runtime in a temporary directory, with programs of the tests, on each supported event loop."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from kplane.embedded.python_path import python_path
from kplane.workloads import Component, Pace, Phase, Port, Probe, ProcessRuntime, end_processes

PROGRAMS = Path(__file__).parent / "programs"
FAST = Pace(restart_base=0.02, restart_limit=0.1, stable=2.0, ready_probe=0.1, log_check=0.05)


def pytest_asyncio_loop_factories(config, item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Sandbox:
    """A directory for runtimes, with helpers that start and observe components."""

    def __init__(self, directory: Path, eventually: Callable) -> None:
        self.directory = directory
        self._eventually = eventually

    def runtime(self, **options) -> ProcessRuntime:
        return ProcessRuntime(self.directory, **{"programs": [Path("/bin")], "pace": FAST, **options})

    def shell(self, name: str, script: str, **fields) -> Component:
        return Component(name=name, program="sh", args=("-c", script), **fields)

    async def web(self, runtime: ProcessRuntime, name: str, *, probe: Mapping = {}, **fields) -> Component:
        address = await runtime.reserve(name, ports=["http"])
        number = address.ports["http"]
        arguments = (str(PROGRAMS / "web_server.py"), str(number), *fields.pop("args", ()))
        probe = Probe(**{"port": "http", "path": "/", "interval_seconds": 0.05, "timeout_seconds": 1.0, **probe})
        return Component(
            name=name,
            program=sys.executable,
            args=arguments,
            ports=(Port(number=number, name="http"),),
            readiness=probe,
            **fields,
        )

    async def phase(self, runtime: ProcessRuntime, name: str, phase: Phase, **also):
        """Wait until the component has this phase, and its state has the values of `also`."""
        return await self._eventually(
            lambda: runtime.state(name),
            lambda state: state.phase is phase and all(getattr(state, key) == value for key, value in also.items()),
        )

    async def text(self, path: Path, accept: Callable[[str], bool] = bool) -> str:
        return await self._eventually(path.read_text, accept)

    async def gone(self, pid: int) -> None:
        await self._eventually(lambda: running(pid), lambda runs: not runs)

    async def supervisor(self, name: str, *, lifetime: str, script: str) -> tuple[asyncio.subprocess.Process, int]:
        """Start a process with a runtime in this directory. Returns the process and the pid of its component."""
        supervisor = await asyncio.create_subprocess_exec(
            *(sys.executable, PROGRAMS / "supervisor.py", self.directory, name, lifetime, script),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": python_path()},
        )
        return supervisor, int(await supervisor.stdout.readline())


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.fixture
def is_running() -> Callable[[int], bool]:
    return running


@pytest.fixture
async def sandbox(tmp_path: Path, eventually: Callable) -> AsyncIterator[Sandbox]:
    sandbox = Sandbox(tmp_path / "components", eventually)
    yield sandbox
    await end_processes(tmp_path, grace_seconds=0.0)
    async with sandbox.runtime() as runtime:
        for name in runtime.names():
            await runtime.delete(name)  # releases the ports


@pytest.fixture
async def runtime(sandbox: Sandbox) -> AsyncIterator[ProcessRuntime]:
    async with sandbox.runtime() as runtime:
        yield runtime
