"""Groups of tasks that call etcd: the first of their errors is raised alone."""

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
    """Waits for its tasks before it exits.

    A group of Python 3.11 or 3.12 of which a task fails while it exits leaves its own task marked as being cancelled.
    That task then takes its next error for its end.
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
    """Run a group of tasks of which each may fail with DataError, and raise the first of these alone."""
    try:
        async with _Group() as tasks:
            yield tasks
            await tasks.ended()
    except ExceptionGroup as failed:
        known, others = failed.split(DataError)
        if known is None or others is not None:
            raise
        raise known.exceptions[0] from None
