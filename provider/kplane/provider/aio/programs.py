"""Runs programs in sessions of their own, so that their child processes end with them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping

__all__ = ["end_program", "start_program"]


async def start_program(*command: str, env: Mapping[str, str] | None = None) -> Process:
    """Start a program with pipes for its output. Raises OSError on failure. A cancelled start leaves no process."""
    starting = asyncio.create_task(
        asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=env, start_new_session=True
        ),
        name=f"start of {command[0]}",
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # asyncio kills only the program, and then waits for its children, which keep the pipes open.
        await asyncio.wait([starting])
        if not starting.cancelled() and starting.exception() is None:
            await end_program(starting.result())
        raise


async def end_program(process: Process) -> None:
    """Kill the program and its child processes, which may outlive it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    # asyncio reports the end only after all output was read, and stops reading at the limit of its buffer.
    await process.communicate()
