"""Background jobs that write or restore data: a bounded number at once, and one for each control plane."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

__all__ = ["SnapshotJobs"]

_AT_ONCE: Final = 2
"""Maximum number of jobs at once. Each job holds some ten megabytes, and reads from an etcd that serves tenants."""


class SnapshotJobs:
    """Background tasks for work that takes longer than one reconcile. `run` must be running."""

    def __init__(self, *, at_once: int = _AT_ONCE) -> None:
        self._at_once = at_once
        self._busy: dict[str, tuple[str, asyncio.Task[None]]] = {}
        """By uid of the object: the uid of its control plane, and the task of the job."""
        self._closed = False

    def has(self, uid: str) -> bool:
        """Return whether a job of this uid is running."""
        return uid in self._busy

    def start(self, uid: str, *, of: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Start a job. Returns False if the limit is reached, or if another job of the control plane is running.

        `of` is the uid of the control plane. `work` must not raise. Returns False also after the end of `run`.
        """
        if self._closed or len(self._busy) >= self._at_once or any(busy == of for busy, _ in self._busy.values()):
            return False
        task = asyncio.create_task(self._work(uid, work), name=f"snapshot {uid}")
        self._busy[uid] = of, task
        return True

    async def cancel(self, uid: str) -> None:
        """Cancel a job, and wait for its end."""
        if (job := self._busy.get(uid)) is not None:
            job[1].cancel()
            await asyncio.wait([job[1]])

    async def run(self) -> None:
        """Wait until cancelled, and then cancel all jobs and wait for their end."""
        try:
            await asyncio.Event().wait()
        finally:
            self._closed = True
            tasks = [task for _, task in self._busy.values()]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _work(self, uid: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await work()
        finally:
            del self._busy[uid]
