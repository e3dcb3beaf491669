"""Ends components in time, also where their supervisor cannot: it is stopped, it hangs, or it is starved."""

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
"""One that does not answer for so long is replaced. It starts within some 30 ms on a machine that has time for it."""
_TRIES: Final = 3
_PATIENCE_SECONDS: Final = 5.0
"""A machine that has no number, no descriptor or no memory for one more process may have them again in a moment."""
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 1.0


class Watchdog:
    """Keeps a small process (`reaper`) that knows until when each component may run, and kills it when that is over.

    It belongs to the runtime over `directory`. `until` tells for how many more seconds each component may run; it is
    asked every second, and what is not in it is not bounded. When this process dies all of them are killed, as those of
    `Lifetime.BOUND` are by the kernel. A reaper that dies is replaced at once.
    """

    def __init__(self, directory: Path, *, until: Callable[[], Mapping[str, float]]) -> None:
        self._command = (sys.executable, "-I", "-S", reaper.__file__, MARKER_VARIABLE, str(directory.resolve()))
        self._until = until
        self._number = 0
        """Of what was told last."""
        self._known = 0
        """Of what was answered last, by a reaper that may be gone since."""
        self._bell = asyncio.Event()
        self._answered = asyncio.Event()
        self._pid: int | None = None

    @property
    def pid(self) -> int | None:
        """Number of the reaper; None while there is none."""
        return self._pid

    async def confirm(self) -> None:
        """Return when a reaper knows what `until` says by now. Raises RuntimeFailure if there is none that does."""
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
        """Watch while within. Where no reaper can be kept, `on_failure` is called, and RuntimeFailure raised at exit.

        The caller ends all components before it leaves.
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
            known = self._known
            problem = await self._try()
            logger.error("the process that ends components in time is replaced: %s", problem)
            if self._known > known:
                failures, give_up_at = 0, time.monotonic() + _PATIENCE_SECONDS
            else:
                await asyncio.sleep(min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2**failures))
                failures += 1
        raise RuntimeFailure(f"No process can be had that would end components in time: {problem}.")

    async def _try(self) -> str:
        """Start a reaper and keep telling it; returns what is wrong with it."""
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
        """Send the present state, and wait for the answer. Raises OSError if the process is gone."""
        stdin, stdout = process.stdin, process.stdout
        if stdin is None or stdout is None or stdin.is_closing():
            # uvloop closes them before it tells that the process ended, and to write then is no OSError to it.
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
