"""Queue of changes to be written, limited by size in bytes, because tenants decide how large their values are."""

from __future__ import annotations

import asyncio
from typing import Final

from kplane.data.watch import Changes

__all__ = ["Backlog"]

_MOST_BYTES: Final = 8 << 20


class Backlog:
    """A queue with a single reader. Above the size limit the writer waits; etcd keeps the later changes meanwhile."""

    def __init__(self) -> None:
        self._groups: list[Changes] = []
        self._size = 0
        self._changed = asyncio.Condition()

    @property
    def empty(self) -> bool:
        """Whether the queue is empty."""
        return not self._groups

    async def put(self, group: Changes) -> None:
        """Add a group of changes, once the size of the queue is below the limit."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._size < _MOST_BYTES)
            self._groups.append(group)
            self._size += group.size
            self._changed.notify_all()

    async def take(self) -> list[Changes]:
        """Wait until the queue has groups, and take all of them."""
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._groups))
            groups, self._groups, self._size = self._groups, [], 0
            self._changed.notify_all()
            return groups
