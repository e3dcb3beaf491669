"""Ends components in time even if their supervisor cannot, because it is stopped, hangs or gets no CPU time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Final, NoReturn

from kplane.workloads.errors import RuntimeFailure
from kplane.workloads.processes import reaper
from kplane.workloads.processes.proctable import MARKER_VARIABLE, uptime

__all__ = ["Watchdog"]

logger = logging.getLogger(__name__)

_TELL_SECONDS: Final = 1.0
_SILENT_SECONDS: Final = 5.0
"""Time after which a silent reaper is replaced.

A reaper starts within some 30 ms on a machine that is not overloaded.
"""
_TRIES: Final = 3
_PATIENCE_SECONDS: Final = 5.0
"""Minimum time before giving up: a machine short of process numbers, descriptors or memory may recover in a moment."""
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 1.0


class Watchdog:
    """Keeps a small process, the `reaper`, which knows the deadline of each component and kills late components.

    The watchdog belongs to the runtime over `directory`. Each second it calls `until`, which returns the seconds for
    which each component may still run. Components that `until` omits have no deadline. When this process dies, the
    reaper kills all components of `directory`. A reaper that dies is replaced at once.
    """

    def __init__(self, directory: Path, *, until: Callable[[], Mapping[str, float]]) -> None:
        self._command = (sys.executable, "-I", "-S", reaper.__file__, MARKER_VARIABLE, str(directory.resolve()))
        self._until = until
        self._number = 0
        """Number of the last message to a reaper."""
        self._known = 0
        """Number of the last message that a reaper acknowledged; the reaper may have ended since."""
        self._bell = asyncio.Event()
        self._answered = asyncio.Event()
        self._pid: int | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the reaper; None if no reaper runs."""
        return self._pid

    async def confirm(self) -> None:
        """Wait until a reaper has acknowledged the present result of `until`.

        Raises RuntimeFailure if none does in 15 s.
        """
        number = self._number + 1
        self._bell.set()
        try:
            async with asyncio.timeout(_TRIES * _SILENT_SECONDS):
                while self._known < number:
                    await self._answered.wait()
        except TimeoutError as error:
            raise RuntimeFailure("There is no process that would end components in time.") from error

    @contextlib.asynccontextmanager
    async def running(self, *, on_failure: Callable[[], None]) -> AsyncIterator[None]:
        """Run the watchdog inside of the context.

        `on_failure` is called as soon as the watchdog has given up, and RuntimeFailure is raised at exit. `on_failure`
        is also called at a normal exit. The caller ends all components before it leaves the context.
        """
        task = asyncio.create_task(self._keep(), name="watchdog")
        task.add_done_callback(lambda _: on_failure())
        try:
            yield
        finally:
            failed = task.done()
            task.cancel()
            await asyncio.wait([task])
        if failed:
            task.result()

    async def _keep(self) -> NoReturn:
        failures, problem = 0, ""
        give_up_at = time.monotonic() + _PATIENCE_SECONDS
        while failures < _TRIES or time.monotonic() < give_up_at:
            acknowledged = self._known
            problem = await self._try()
            logger.error("the process that ends components in time is replaced: %s", problem)
            if self._known > acknowledged:
                failures, give_up_at = 0, time.monotonic() + _PATIENCE_SECONDS
            else:
                await asyncio.sleep(min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2**failures))
                failures += 1
        raise RuntimeFailure(f"No process can be had that would end components in time: {problem}.")

    async def _try(self) -> str:
        """Start a reaper and keep sending it the deadlines; returns the reason for which it has to be replaced."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, start_new_session=True, env={}
            )
        except OSError as error:
            return str(error)
        end = asyncio.create_task(process.wait(), name=f"end of reaper {process.pid}")
        end.add_done_callback(lambda _: self._bell.set())
        self._pid = process.pid
        try:
            while not end.done():
                async with asyncio.timeout(_SILENT_SECONDS):
                    await self._send(process)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TELL_SECONDS):
                        await self._bell.wait()
        except TimeoutError:
            return f"process {process.pid} was silent for {_SILENT_SECONDS:g} s"
        except OSError as error:
            return f"process {process.pid}: {error}"
        finally:
            self._pid = None
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.wait([end])
        return f"process {process.pid} ended"

    async def _send(self, process: Process) -> None:
        """Send the present deadlines, and wait for the acknowledgement. Raises OSError if the reaper is gone."""
        stdin, stdout = process.stdin, process.stdout
        if stdin is None or stdout is None or stdin.is_closing():
            # uvloop closes the pipes before it reports the end of the process, and a write to them then raises no
            # OSError.
            raise ConnectionResetError("it ended")
        self._bell.clear()
        number = self._number = self._number + 1
        now = uptime()
        until = {name: round(now + seconds, 3) for name, seconds in self._until().items()}
        stdin.write(json.dumps([number, until]).encode() + b"\n")
        await stdin.drain()
        if await stdout.readline() != b"%d\n" % number:
            raise ConnectionResetError("it ended, or says what it should not")
        self._known = number
        answered, self._answered = self._answered, asyncio.Event()
        answered.set()
