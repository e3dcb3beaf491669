"""Processes that no supervisor may be left for: finding and ending them from outside."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kplane.workloads.processes.process import Process
from kplane.workloads.processes.proctable import ProcessEntry, marked_processes

__all__ = ["end_entries", "end_processes", "find_processes"]


def find_processes(directory: Path) -> list[int]:
    """List the pids of all processes of a component, or of runtimes at or below `directory`, oldest first.

    A component's directory is the one of its name in its runtime's.
    """
    return [entry.pid for entry in marked_processes(directory)]


async def end_processes(directory: Path, *, grace_seconds: float) -> list[int]:
    """End all processes that belong to components of runtimes at or below `directory`, and wait for their end.

    Main processes are asked first and killed after `grace_seconds`; the rest of their groups is killed. Where
    supervisors are among them, what they started meanwhile is ended too; a supervisor that carries no marker itself
    must have been ended before. Returns the pids of all that were found.
    """
    pids: list[int] = []
    while entries := marked_processes(directory):
        pids.extend(entry.pid for entry in entries if entry.pid not in pids)
        leaders = [entry for entry in entries if entry.leader]
        await end_entries(leaders or entries, grace_seconds=grace_seconds if leaders else 0.0)
    return pids


async def end_entries(entries: list[ProcessEntry], *, grace_seconds: float) -> None:
    """End these processes with what is left of their groups, all at once, and wait for their end."""
    found = [process for entry in entries if (process := Process.adopt(entry)) is not None]
    try:
        async with asyncio.TaskGroup() as tasks:
            for process in found:
                tasks.create_task(process.end(grace_seconds=grace_seconds), name=f"end {process.pid}")
    finally:
        for process in found:
            process.release()
