"""A process, observed through its pidfd: a child, or a process that an earlier supervisor started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kplane.workloads.processes.proctable import (
    DIGEST_VARIABLE,
    MARKER_VARIABLE,
    ProcessEntry,
    group_members,
    marked_processes,
    open_pidfd,
    uptime,
)

__all__ = ["Process", "end_entries", "end_processes", "find_processes"]


def _nothing() -> None:
    pass


class Process:
    """A session leader, whose process group ends with it.

    The pidfd becomes readable at the end of the process. So no child watcher, SIGCHLD or thread is necessary.
    """

    def __init__(
        self,
        pid: int,
        *,
        pidfd: int,
        started: float,
        marker: str = "",
        digest: str = "",
        adopted: bool = False,
        on_end: Callable[[], None] = _nothing,
    ) -> None:
        self.pid = pid
        self.started = started
        """Start time on the clock of `proctable.uptime`."""
        self.digest = digest
        self.adopted = adopted
        """Whether an earlier supervisor started the process."""
        self.exit_code: int | None = None
        """Exit code; negative: the signal's number. None before the end, and for a process that is not our child."""
        self._marker = marker
        self._pidfd = pidfd
        self._on_end = on_end
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._watched = {pidfd}
        self._loop.add_reader(pidfd, self._leader_ended)

    @classmethod
    def spawn(
        cls,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        directory: Path,
        stdin: int,
        stdout: int,
        stderr: int,
        on_end: Callable[[], None] = _nothing,
    ) -> Process:
        """Start a program in a session of its own, with only these three descriptors.

        `environment` is the whole environment, `directory` the working directory. Call `spawn` in the loop's thread: a
        program bound to its parent's life dies with the *thread* that started it. Raises OSError if the program cannot
        be started.
        """
        popen = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            cwd=directory,
            start_new_session=True,
            umask=0o077,
        )
        started = uptime()
        popen.returncode = 0  # `_reap` reaps it by pidfd: Popen must not reap it, or warn that it still runs
        try:
            pidfd = os.pidfd_open(popen.pid)
        except OSError:
            os.kill(popen.pid, signal.SIGKILL)
            os.waitpid(popen.pid, 0)
            raise
        return cls(
            popen.pid,
            pidfd=pidfd,
            started=started,
            marker=environment.get(MARKER_VARIABLE, ""),
            digest=environment.get(DIGEST_VARIABLE, ""),
            on_end=on_end,
        )

    @classmethod
    def adopt(cls, entry: ProcessEntry, *, on_end: Callable[[], None] = _nothing) -> Process | None:
        """Take over a running process; None if the process is gone already."""
        pidfd = open_pidfd(entry)
        if pidfd is None:
            return None
        return cls(
            entry.pid,
            pidfd=pidfd,
            started=entry.started,
            marker=entry.marker,
            digest=entry.digest,
            adopted=True,
            on_end=on_end,
        )

    @property
    def ended(self) -> bool:
        """Whether the process and its whole group are gone."""
        return self._ended.is_set()

    @property
    def age_seconds(self) -> float:
        """Seconds since the start of the process."""
        return uptime() - self.started

    async def wait(self) -> None:
        """Wait until the process and its whole group are gone."""
        await self._ended.wait()

    async def end(self, *, grace_seconds: float) -> None:
        """Send SIGTERM, kill the process and its group after the grace period, and wait until all are gone."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_seconds):
                await self._ended.wait()
        except TimeoutError:
            self.kill()
            await self._ended.wait()

    def kill(self) -> bool:
        """Kill the process; its group is killed once the process has ended. Returns False if the process has ended."""
        return self._signal(signal.SIGKILL)

    def release(self) -> None:
        """Stop watching, and leave the process running."""
        for pidfd in list(self._watched):
            self._forget(pidfd)

    def _signal(self, number: signal.Signals) -> bool:
        if self._pidfd not in self._watched:
            return False
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def _forget(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        self._watched.discard(pidfd)

    def _leader_ended(self) -> None:
        child = self._reap()
        self._forget(self._pidfd)
        if self._group_exists():
            for entry in group_members(self.pid):
                # After the leader is reaped, its number may identify another group: then only the marker is reliable.
                if child or (entry.marker and entry.marker == self._marker):
                    self._kill_member(entry)
        self._settle()

    def _reap(self) -> bool:
        """Kill the rest of the group and take the exit code. Returns False if the process is not our child."""
        try:
            # Until the process is reaped, its number and its group's number are not reused. A single call reaches the
            # whole group, including processes that are forked now.
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            result = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return False
        if result is not None:
            self.exit_code = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        return True

    def _group_exists(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return False  # the number now belongs to a group of another user
        return True

    def _kill_member(self, entry: ProcessEntry) -> None:
        pidfd = open_pidfd(entry)
        if pidfd is None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        self._watched.add(pidfd)
        self._loop.add_reader(pidfd, self._member_ended, pidfd)

    def _member_ended(self, pidfd: int) -> None:
        self._forget(pidfd)
        self._settle()

    def _settle(self) -> None:
        if not self._watched:
            self._ended.set()
            self._on_end()


def find_processes(directory: Path) -> list[int]:
    """List the pids of all processes of the components at or below `directory`, oldest first.

    `directory` is the directory of a component or of a runtime, or a directory above. A component's directory has the
    component's name, and is in its runtime's directory.
    """
    return [entry.pid for entry in marked_processes(directory)]


async def end_processes(directory: Path, *, grace_seconds: float) -> list[int]:
    """End all processes that belong to components of runtimes at or below `directory`, and wait for their end.

    Main processes get SIGTERM first and are killed after `grace_seconds`; the rest of their groups is killed. If a
    supervisor is among them, processes that it starts meanwhile are ended too. A supervisor without a marker must have
    been ended before. Returns the pids of all processes that were found.
    """
    pids: list[int] = []
    while entries := marked_processes(directory):
        pids.extend(entry.pid for entry in entries if entry.pid not in pids)
        leaders = [entry for entry in entries if entry.leader]
        await end_entries(leaders or entries, grace_seconds=grace_seconds if leaders else 0.0)
    return pids


async def end_entries(entries: list[ProcessEntry], *, grace_seconds: float) -> None:
    """End these processes and the rest of their groups, all at once, and wait for their end."""
    processes = [process for entry in entries if (process := Process.adopt(entry)) is not None]
    try:
        async with asyncio.TaskGroup() as tasks:
            for process in processes:
                tasks.create_task(process.end(grace_seconds=grace_seconds), name=f"end {process.pid}")
    finally:
        for process in processes:
            process.release()
