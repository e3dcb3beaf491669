"""Programs that are started, and ended together with their child processes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from kplane.provider.aio.programs import end_program, start_program


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("turns", [1, 2, 3, 5, 8])
async def test_cancelled_start_program_leaves_no_process(tmp_path, eventually, turns):
    child = tmp_path / "child"
    starting = asyncio.create_task(start_program("sh", "-c", f"sleep 1000 & echo $! > {child}; sleep 1000"))
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    async with asyncio.timeout(60):
        await asyncio.wait([starting])
    if starting.cancelled():
        # The program may have been killed before it wrote the id of its child.
        await eventually(lambda: not (child.exists() and child.read_text() and _runs(int(child.read_text()))))
    else:
        await end_program(starting.result())


async def test_end_program_ends_processes_with_unread_output(eventually):
    process = await start_program("sh", "-c", "yes & yes")
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await end_program(process)

    def gone() -> bool:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    # A killed process stays a zombie until its parent has waited for it.
    await eventually(gone)


async def test_start_program_raises_for_a_missing_program():
    with pytest.raises(FileNotFoundError):
        await start_program("/no/such/program")
