"""Groups of tasks that call etcd: the first of their errors is raised alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from kplane.data.errors import DataError

__all__ = ["task_group"]


@contextlib.asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Run a group of tasks of which each may fail with DataError, and raise the first of these alone."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except ExceptionGroup as failed:
        known, others = failed.split(DataError)
        if known is None or others is not None:
            raise
        raise known.exceptions[0] from None
