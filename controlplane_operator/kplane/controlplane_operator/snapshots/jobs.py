"""Snapshots that are being written: a bounded number at once, and one for each control plane."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

__all__ = ["SnapshotJobs"]

_AT_ONCE: Final = 2
"""Each holds some ten megabytes, and reads from an etcd that serves tenants."""


class SnapshotJobs:
    """Work that takes longer than one look at an object. `run` has to run."""

    def __init__(self, *, at_once: int = _AT_ONCE) -> None:
        self._at_once = at_once
        self._busy: dict[str, tuple[str, asyncio.Task[None]]] = {}
        """By uid of the snapshot: uid of its control plane."""
        self._closed = False

    def has(self, uid: str) -> bool:
        """Tell whether the snapshot of this uid is being written."""
        return uid in self._busy

    def start(self, uid: str, *, of: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Begin; False if it is not its turn. `of` is the uid of its control plane. `work` raises nothing."""
        if self._closed or len(self._busy) >= self._at_once or any(busy == of for busy, _ in self._busy.values()):
            return False
        task = asyncio.create_task(self._work(uid, work), name=f"snapshot {uid}")
        self._busy[uid] = of, task
        return True

    async def cancel(self, uid: str) -> None:
        """End the writing of a snapshot; returns when it has ended."""
        if (found := self._busy.get(uid)) is not None:
            found[1].cancel()
            await asyncio.wait([found[1]])

    async def run(self) -> None:
        """Wait until cancelled, and end what is being written then."""
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
