"""Any order of calls, crashes and restarts of the runtime: exactly the last applied components run, each once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kplane.workloads import Component, File, Lifetime, Pace, Phase, ProcessRuntime, end_processes, find_processes

NAMES = st.sampled_from(["a", "b"])
VERSIONS = st.sampled_from(["1", "2"])
PACE = Pace(restart_base=0.01, restart_limit=0.02, log_check=0.05)


def running_version(pid: int | None) -> str | None:
    """Return the version that a process runs. None after its exit, even before the runtime observes the exit."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return dict(item.partition(b"=")[::2] for item in environment.split(b"\0")).get(b"VERSION", b"").decode() or None


class RuntimeMachine(RuleBasedStateMachine):
    """A model of the runtime: the desired version of each name, and the names that own a directory."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="kplane-machine-"))
        self.runner = asyncio.Runner()
        self.wanted: dict[str, tuple[str, Lifetime]] = {}
        self.present: set[str] = set()
        self.runtime = self.open()

    def open(self) -> ProcessRuntime:
        async def enter() -> ProcessRuntime:
            return await ProcessRuntime(self.directory, programs=[Path("/bin")], pace=PACE).__aenter__()

        return self.runner.run(enter())

    def component(self, name: str, version: str, lifetime: Lifetime) -> Component:
        return Component(
            name=name,
            program="sleep",
            args=("1000",),
            env={"VERSION": version},
            files={"f": File(version.encode(), reloaded=True)},
            lifetime=lifetime,
        )

    @rule(name=NAMES, version=VERSIONS, lifetime=st.sampled_from(Lifetime))
    def apply(self, name: str, version: str, lifetime: Lifetime) -> None:
        self.runner.run(self.runtime.apply(self.component(name, version, lifetime)))
        self.wanted[name] = (version, lifetime)
        self.present.add(name)

    @rule(name=NAMES, version=VERSIONS)
    def apply_cancelled(self, name: str, version: str) -> None:
        component = self.component(name, version, Lifetime.INDEPENDENT)

        async def cancelled() -> bool:
            task = asyncio.create_task(self.runtime.apply(component))
            await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            return not task.cancelled()

        if self.runner.run(cancelled()):
            self.wanted[name] = (version, Lifetime.INDEPENDENT)
            self.present.add(name)
        else:
            self.stop(name)

    @rule(name=NAMES)
    def stop(self, name: str) -> None:
        self.runner.run(self.runtime.stop(name))
        self.wanted.pop(name, None)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.runner.run(self.runtime.delete(name))
        self.wanted.pop(name, None)
        self.present.discard(name)

    @rule(name=NAMES)
    def kill(self, name: str) -> None:
        pid = self.runtime.state(name).pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @rule(again=st.booleans())
    def reopen(self, again: bool) -> None:
        """Close the runtime and open the next. With `again`, apply all desired components, otherwise stop them."""
        self.runner.run(self.runtime.__aexit__(None, None, None))
        self.runtime = self.open()
        if again:
            for name, (version, lifetime) in self.wanted.items():
                self.runner.run(self.runtime.apply(self.component(name, version, lifetime)))
        else:
            for name in list(self.wanted):
                self.stop(name)

    @invariant()
    def names_are_those_that_own_something(self) -> None:
        assert set(self.runtime.names()) == self.present

    @invariant()
    def exactly_what_is_wanted_runs(self) -> None:
        desired = {name: version for name, (version, _) in self.wanted.items()}

        async def settled() -> None:
            for _ in range(500):
                pids = {name: self.runtime.state(name).pid for name in desired}
                ready = all(self.runtime.state(name).phase is Phase.READY for name in desired)
                processes = find_processes(self.directory)
                versions = {name: running_version(pid) for name, pid in pids.items()}
                if ready and versions == desired and sorted(pids.values()) == sorted(processes):
                    return
                await asyncio.sleep(0.01)
            raise AssertionError(
                f"wanted {desired}; {pids} of versions {versions}, ready: {ready}; processes {processes}"
            )

        self.runner.run(settled())

    def teardown(self) -> None:
        async def end() -> None:
            await self.runtime.__aexit__(None, None, None)
            await end_processes(self.directory, grace_seconds=0.0)

        self.runner.run(end())
        self.runner.close()
        assert find_processes(self.directory) == []
        shutil.rmtree(self.directory)


RuntimeMachine.TestCase.settings = settings(
    max_examples=12,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestAnyOrder = RuntimeMachine.TestCase
