"""Groups of tasks that call etcd."""

from __future__ import annotations

import asyncio

import pytest

from kplane.data import DataError
from kplane.data.tasks import task_group


async def _fail(after: asyncio.Event) -> None:
    await after.wait()
    raise DataError("etcd is away")


def _cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def _run(*fail: asyncio.Event) -> None:
    async with task_group() as tasks:
        for each in fail:
            tasks.create_task(_fail(each))


async def test_who_runs_a_group_that_fails_is_not_taken_for_cancelled() -> None:
    now = asyncio.Event()
    asyncio.get_running_loop().call_soon(now.set)
    with pytest.raises(DataError, match="etcd is away"):
        await _run(now, asyncio.Event())
    assert _cancelling() == 0


async def test_who_is_cancelled_while_a_group_fails_is_still_cancelled() -> None:
    async def run() -> None:
        with pytest.raises(DataError):
            await _run(now)
        noted.append(_cancelling())

    noted: list[int] = []
    now = asyncio.Event()
    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    now.set()
    await asyncio.sleep(0)
    task.cancel()
    # From Python 3.13 on, it ends as one that was cancelled.
    await asyncio.wait([task])
    assert noted == [1]
