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
        for event in fail:
            tasks.create_task(_fail(event))


async def test_failed_task_group_does_not_cancel_its_caller() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_soon(event.set)
    with pytest.raises(DataError, match="etcd is away"):
        await _run(event, asyncio.Event())
    assert _cancelling() == 0


async def test_caller_stays_cancelled_when_task_group_fails() -> None:
    async def run() -> None:
        with pytest.raises(DataError):
            await _run(event)
        counts.append(_cancelling())

    counts: list[int] = []
    event = asyncio.Event()
    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    event.set()
    await asyncio.sleep(0)
    task.cancel()
    # From Python 3.13 on, the task ends as cancelled.
    await asyncio.wait([task])
    assert counts == [1]
