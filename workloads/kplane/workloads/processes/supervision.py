"""Supervision of a component: start, watch, restart, stop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import resource
import signal
import subprocess
from collections.abc import Awaitable, Callable

import aiohttp

from kplane.workloads.component import Lifetime, RestartPolicy
from kplane.workloads.errors import RuntimeFailure
from kplane.workloads.processes.directory import ComponentDirectory
from kplane.workloads.processes.former import Command, Rollback
from kplane.workloads.processes.launch import Launch, refusal
from kplane.workloads.processes.log import LogFile
from kplane.workloads.processes.pace import Pace, RestartBackoff
from kplane.workloads.processes.probing import HttpProbe, Liveness
from kplane.workloads.processes.process import Process
from kplane.workloads.processes.proctable import ProcessEntry, read_command
from kplane.workloads.runtime import ComponentState, Phase

__all__ = ["Supervision"]

_UNDESCRIBED_GRACE_SECONDS = 30.0
"""Grace period for a component of an earlier run, until `apply` passes its description, which has the grace period."""

logger = logging.getLogger(__name__)


class Supervision:
    """Supervision of a single component of a runtime.

    Calls are serialized by the runtime's lock of the name, and each call may be cancelled. A process belongs to a task
    from its start to its end, so that a cancelled caller leaves no process unsupervised. A stop continues, and the next
    call waits for it.
    """

    def __init__(
        self,
        directory: ComponentDirectory,
        *,
        host: str,
        session: aiohttp.ClientSession,
        pace: Pace,
        log_limit_bytes: int,
        on_change: Callable[[str], None],
        before_restart: Callable[[str, int], Awaitable[None]],
    ) -> None:
        self.directory = directory
        self.state = ComponentState(name=directory.path.name, phase=Phase.ABSENT)
        self._host = host
        self._session = session
        self._pace = pace
        self._backoff = RestartBackoff(pace)
        self._log = LogFile(directory.log, limit_bytes=log_limit_bytes)
        self._on_change = on_change
        self._before_restart = before_restart
        self._launch: Launch | None = None
        self._digest = ""
        """Digest of the description that is kept running; empty if none is."""
        self._process: Process | None = None
        self._hung = ""
        """Reason for which the hung process was killed; empty if the supervision did not kill it."""
        self._rollback = Rollback(initial_seconds=pace.refused_base, maximum_seconds=pace.refused_limit)
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._wake = asyncio.Event()

    @property
    def bound(self) -> bool:
        """Whether the component ends with the runtime."""
        return self._launch is not None and self._launch.component.lifetime is Lifetime.BOUND

    def adopt(self, entry: ProcessEntry) -> None:
        """Watch a process of an earlier run. It is probed and restarted only after `apply` describes its component."""
        process = Process.adopt(entry, on_end=self._wake.set)
        if process is not None:
            self._digest = entry.digest
            with contextlib.suppress(OSError):  # the process has ended meanwhile
                self._rollback.adopt(Command(*read_command(entry), entry.digest))
            self._supervise(process, message="found running from an earlier run, and not described again yet")

    async def apply(self, launch: Launch) -> None:
        """Run the component as described. Raises RuntimeFailure if the component cannot be started."""
        component = launch.component
        try:
            self.directory.create(data=component.data, scratch=component.scratch)
            present = self._present_form(launch) or await self._form_that_runs_on(launch)
            if present is not None:
                self.directory.write_files(present.component.files)
                if self._launch != present:
                    self._launch = present
                    self._wake.set()
                return
            # A failure up to `stage` leaves the old process running, with its old files.
            past = self._rollback.prepare(launch, read_files=self.directory.read_files)
            staged = self.directory.stage(component.files)
            await self.stop()
            self._rollback.begin(past)
            self.directory.switch(component.files, staged=staged)
        except OSError as error:
            raise RuntimeFailure(f"Component {component.name}: its directory cannot be written: {error}.") from error
        process = self._spawn(launch)
        self._launch, self._digest, self._backoff = launch, launch.digest, RestartBackoff(self._pace)
        self._rollback.note_start(launch)
        self._supervise(process)

    async def stop(self) -> None:
        """End the component and wait for its end. Also ends a delay before the next start."""
        if self._task is not None:
            self._stopping = True
            self._wake.set()
            if self._process is not None:
                self._show(phase=Phase.STOPPING, message="")
            await asyncio.shield(self._task)
        self._task, self._stopping = None, False
        self._forget()

    def kill(self) -> bool:
        """Kill the process, which is then restarted as after any other end. Returns False if no process runs."""
        return self._process is not None and self._process.kill()

    async def release(self) -> None:
        """Leave the process to the next supervisor. If a stop is in progress, waits for its end."""
        if self._task is None:
            return
        if not self._stopping:
            self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None

    def _present_form(self, launch: Launch) -> Launch | None:
        """Return the launch that already runs for a description: itself, or the former command in its place.

        Else None.
        """
        if self._keeps_up(launch):
            if self._rollback.forget_refusal():  # the change that failed was reverted
                self._show(message="")
            return launch
        return None if self._stopping else self._rollback.in_place_of(launch)

    async def _form_that_runs_on(self, launch: Launch) -> Launch | None:
        """Return the launch that keeps running if the program refuses the arguments of a new description.

        The running process is not interrupted. None if the program accepts the arguments, cannot validate them, or has
        no process that was ready. Raises OSError.
        """
        if self._process is None or self._stopping or launch.component.fallback is None:
            return None
        why = await refusal(launch)
        if why is None or self._process is None:
            return None
        present = self._rollback.refuse(launch, why, read_files=self.directory.read_files)
        if present is not None:
            logger.warning("Component %s runs on as before: %s", self.state.name, why)
            self._show(message=why)
        return present

    def _keeps_up(self, launch: Launch) -> bool:
        if self._stopping or self._digest != launch.digest:
            return False
        inherited = self._process is not None and self._process.adopted
        # A process of an earlier supervisor is not bound to the life of this supervisor.
        return not (inherited and launch.component.lifetime is Lifetime.BOUND)

    def _spawn(self, launch: Launch) -> Process:
        try:
            log = self._log.open()
            try:
                process = Process.spawn(
                    launch.argv,
                    environment=launch.environment,
                    directory=self.directory.path,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    on_end=self._wake.set,
                )
                _bound_files(process, launch.component.open_files)
                return process
            finally:
                os.close(log)
        except OSError as error:
            raise RuntimeFailure(f"Component {launch.component.name} cannot be started: {error}.") from error

    def _supervise(self, process: Process, *, message: str = "") -> None:
        self._process = process
        self._show(phase=Phase.STARTING, message=message, restarts=0, pid=process.pid, exit_code=None)
        self._task = asyncio.get_running_loop().create_task(
            self._run(process), name=f"supervise {self.directory.path.name}"
        )

    async def _run(self, process: Process) -> None:
        current: Process | None = process
        try:
            while current is not None:
                await self._watch(current)
                if self._stopping:
                    await current.end(grace_seconds=self._grace_seconds)
                    self._show(exit_code=current.exit_code)
                    break
                self._process = None
                current = await self._restart(current, at_once=self._change_over(current))
                self._process = current
            if self._stopping:
                self._forget()
        except Exception:
            logger.exception("The supervision of component %s failed; it is ended", self.state.name)
            if current is not None:
                await current.end(grace_seconds=0.0)
            self._digest = ""
            self._show(phase=Phase.ENDED, message="its supervision failed: see the log of the supervisor", pid=None)
        finally:
            self._process = None
            if current is not None:
                current.release()

    def _forget(self) -> None:
        self._digest, self._launch = "", None
        self._rollback.forget_refusal()
        self._show(phase=Phase.ABSENT, message="", restarts=0, pid=None)

    @property
    def _grace_seconds(self) -> float:
        return self._launch.component.grace_seconds if self._launch else _UNDESCRIBED_GRACE_SECONDS

    async def _watch(self, process: Process) -> None:
        """Probe the process and limit its log, until the process has ended or is to be stopped."""
        liveness = Liveness(failures=self._pace.live_failures, start_seconds=self._pace.start_limit)
        self._hung = ""
        while not (process.ended or self._stopping):
            self._wake.clear()
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._log.keep_bounded(interval_seconds=self._pace.log_check)),
                    group.create_task(self._follow_readiness(liveness)),
                    group.create_task(self._follow_liveness(process, liveness)),
                ]
                await self._wake.wait()
                for task in tasks:
                    task.cancel()

    async def _follow_readiness(self, liveness: Liveness) -> None:
        if self._launch is None:
            return
        component, probe = self._launch.component, self._launch.component.readiness
        if probe is None:
            self._judge(None)
            return
        readiness = HttpProbe(self._session, component=component, probe=probe, host=self._host, tls=self._launch.tls)
        failures = 0
        began = asyncio.get_running_loop().time()
        while not self._stopping:
            problem = await readiness.check()
            failures = 0 if problem is None else failures + 1
            liveness.started = liveness.started or problem is None
            self._judge(problem, lasting=failures >= probe.failure_threshold)
            if self.state.phase is Phase.READY and not failures:
                wait = self._pace.ready_probe
            else:  # probe less often the longer it takes, so that many failing components do not overload the machine
                elapsed = asyncio.get_running_loop().time() - began
                wait = min(max(probe.interval_seconds, elapsed / 20), self._pace.ready_probe)
            await asyncio.sleep(wait)

    async def _follow_liveness(self, process: Process, liveness: Liveness) -> None:
        """Kill the process once it hangs. The process is then restarted as after any other end."""
        if self._launch is None:
            return
        component, probe = self._launch.component, self._launch.component.readiness
        if probe is None or component.liveness_path is None:
            return
        asked = dataclasses.replace(probe, path=component.liveness_path)
        alive = HttpProbe(self._session, component=component, probe=asked, host=self._host, tls=self._launch.tls)
        while not self._stopping:
            problem = await liveness.watch(alive, interval_seconds=self._pace.live_probe)
            if problem is not None and not self._stopping:
                self._hung = problem
                logger.warning("Component %s hangs and is killed: %s", self.state.name, problem)
                process.kill()

    def _judge(self, problem: str | None, *, lasting: bool = False) -> None:
        if self._stopping:
            return  # an answer that came just before the monitors are ended
        if problem is None:
            self._rollback.note_ready()
            self._show(phase=Phase.READY, message=self._rollback.refusal)
        elif self.state.phase is not Phase.READY:
            self._show(message=problem)
        elif lasting:
            self._show(phase=Phase.UNREADY, message=problem)

    def _change_over(self, ended: Process) -> bool:
        """After an end before readiness, switch to the alternative description, if there is an alternative.

        Returns True if the next start happens without delay.
        """
        launch = self._launch
        # A signal is no fault of the description: the kernel kills if memory is short, and administrators kill.
        failed = bool(self._hung) or (ended.exit_code is not None and ended.exit_code >= 0)
        if not failed or launch is None or launch.component.restart is RestartPolicy.NEVER:
            return False
        following = self._rollback.alternative(launch)
        if following is None:
            return False
        try:
            self.directory.write_files(following.component.files)
        except OSError as error:
            logger.warning("Component %s cannot run as before: %s", self.state.name, error)
            return False
        self._rollback.change_over(following, failed=launch, why=self._tell_end(ended))
        self._launch, self._digest = following, following.digest
        return self._rollback.refused is not None and not self._backoff.failures

    async def _restart(self, ended: Process, *, at_once: bool) -> Process | None:
        """Wait unless `at_once`, and start the component again; None if it must not be started, or is stopped."""
        reason, ran_seconds = self._tell_end(ended), ended.age_seconds
        while True:
            if self._launch is None or self._launch.component.restart is RestartPolicy.NEVER:
                if self._launch is None:
                    self._digest = ""
                self._show(phase=Phase.ENDED, message=reason, pid=None, exit_code=ended.exit_code)
                return None
            if at_once:
                logger.warning("Component %s %s; it runs as before again", self.state.name, reason.partition(";")[0])
                at_once = False
            else:
                await self._back_off(reason, ran_seconds=ran_seconds, exit_code=ended.exit_code)
            if self._stopping:
                return None
            try:
                process = self._spawn(self._launch)
            except RuntimeFailure as error:
                reason, ran_seconds = str(error), 0.0
                continue
            self._show(phase=Phase.STARTING, message=reason, restarts=self.state.restarts + 1, pid=process.pid)
            return process

    async def _back_off(self, reason: str, *, ran_seconds: float, exit_code: int | None) -> None:
        wait = self._backoff.next_wait(ran_seconds=ran_seconds)
        logger.warning("Component %s %s; next start in %.1f s", self.state.name, reason.partition(";")[0], wait)
        message = f"{reason}\nnext start in {wait:.1f} s at the earliest"
        self._show(phase=Phase.BACKOFF, message=message, pid=None, exit_code=exit_code)
        await self._wait_to_restart(wait)

    async def _wait_to_restart(self, seconds: float) -> None:
        """Wait for the delay, and then for `before_restart`. A stop ends the wait."""

        async def wait() -> None:
            await asyncio.sleep(seconds)
            await self._before_restart(self.state.name, self._backoff.failures)

        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(wait())
            waiting.add_done_callback(lambda _: self._wake.set())
            while not (self._stopping or waiting.done()):
                self._wake.clear()
                await self._wake.wait()
            waiting.cancel()

    def _tell_end(self, process: Process) -> str:
        code = process.exit_code
        if self._hung:
            how = f"was killed, because it hung ({self._hung})"
        elif code is None:
            how = "ended (its exit code is not known, as an earlier supervisor had started it)"
        elif code < 0:
            how = f"was ended by signal {_signal_name(-code)}"
        else:
            how = f"ended with exit code {code}"
        tail, fatal = self._log.tail(), self._log.fatal_line()
        parts = [f"{how} after {process.age_seconds:.1f} s"]
        # Lines after a fatal line, such as a backtrace, can be longer than the tail.
        if fatal and fatal != tail.strip():
            parts.append(f"its last fatal line is: {fatal}")
        if tail:
            parts.append(f"the end of its log is:\n{tail}")
        return "; ".join(parts)

    def _show(self, **changes: object) -> None:
        refused = self._rollback.refused is not None
        state = dataclasses.replace(self.state, rolling=refused, failing=refused, **changes)  # type: ignore[arg-type]
        if state != self.state:
            self.state = state
            self._on_change(state.name)


def _bound_files(process: Process, count: int | None) -> None:
    """Limit the open files of a process that was just started. A lower existing limit stays."""
    if count is None:
        return
    with contextlib.suppress(OSError):  # the process has ended already, which its exit code reports
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        least = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (least, least))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
