"""Concurrent requests for metrics share a rendering, and no response is older than its request."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from kplane.provider.serving.metrics import Rendering


class Source:
    """Returns the number of the rendering, each after the test releases `go`."""

    def __init__(self, *, failing: int = 0) -> None:
        self.begun: asyncio.Queue[int] = asyncio.Queue()
        self.go = asyncio.Semaphore(0)
        self.rendering = Rendering(self._render)
        self._numbers = itertools.count(1)
        self._failing = failing

    async def _render(self) -> bytes:
        number = next(self._numbers)
        self.begun.put_nowait(number)
        await self.go.acquire()
        if number == self._failing:
            raise OSError("no descriptors")
        return b"%d" % number


async def test_requests_during_a_rendering_share_the_next_one() -> None:
    source = Source()
    async with asyncio.timeout(60.0), asyncio.TaskGroup() as tasks:
        first = tasks.create_task(source.rendering.text())
        await source.begun.get()
        gone = [tasks.create_task(source.rendering.text()) for _ in range(8)]
        others = [tasks.create_task(source.rendering.text()) for _ in range(8)]
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        source.go.release()
        assert await first == b"1"
        source.go.release()
        assert [await task for task in others] == [b"2"] * 8
        source.go.release()
        assert await source.rendering.text() == b"3"


async def test_failed_rendering_is_repeated_for_requests_that_share_it() -> None:
    source = Source(failing=2)
    async with asyncio.timeout(60.0), asyncio.TaskGroup() as tasks:
        _ = tasks.create_task(source.rendering.text())
        await source.begun.get()
        sharing = [asyncio.create_task(source.rendering.text()) for _ in range(3)]
        await asyncio.sleep(0)
        source.go.release()
        assert await source.begun.get() == 2
        source.go.release()  # the second rendering fails
        assert await source.begun.get() == 3
        sharing[1].cancel()
        assert await source.begun.get() == 4
        source.go.release()
        assert await sharing[2] == b"4"
        with pytest.raises(OSError, match="no descriptors"):
            await sharing[0]
