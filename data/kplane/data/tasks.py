"""Groups of tasks that call etcd. A group raises the first DataError of its tasks alone, without an ExceptionGroup."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Generator
from contextvars import Context
from typing import Any, TypeVar

from typing_extensions import override

from kplane.data.errors import DataError

__all__ = ["task_group"]

_T = TypeVar("_T")


class _Group(asyncio.TaskGroup):
    """A task group that waits for its tasks before it exits.

    In Python 3.11 and 3.12, a task that fails while its group exits leaves the parent task marked as being cancelled.
    The parent then mistakes its next error for its own cancellation.
    """

    def __init__(self) -> None:
        super().__init__()
        self._running: set[asyncio.Task[Any]] = set()

    @override
    def create_task(
        self,
        coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[_T]:
        task = super().create_task(coro, name=name, context=context)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def ended(self) -> None:
        while self._running:
            await asyncio.wait(self._running)


@contextlib.asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Run a group of tasks that may fail with DataError, and raise the first of these errors alone."""
    try:
        async with _Group() as tasks:
            yield tasks
            await tasks.ended()
    except ExceptionGroup as failed:
        ours, others = failed.split(DataError)
        if ours is None or others is not None:
            raise
        raise ours.exceptions[0] from None
