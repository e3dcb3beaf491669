"""Programs in a session of their own: however they end, nothing that they started is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping

__all__ = ["end_program", "start_program"]


async def start_program(*command: str, env: Mapping[str, str] | None = None) -> Process:
    """Start a program whose output is read. Raises OSError if it cannot be run. A cancelled start leaves nothing."""
    starting = asyncio.create_task(
        asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=env, start_new_session=True
        ),
        name=f"start of {command[0]}",
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # asyncio would kill the program alone, and then wait for what it had started, which keeps the pipes open.
        await asyncio.wait([starting])
        if not starting.cancelled() and starting.exception() is None:
            await end_program(starting.result())
        raise


async def end_program(process: Process) -> None:
    """Kill the program and what it has started, which may outlive it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    # asyncio says that it has ended when its output was read: there may be more of that than it reads ahead.
    await process.communicate()
