"""Changes that wait to be written: so many bytes of them at most, because tenants decide how large values are."""

from __future__ import annotations

import asyncio
from typing import Final

from kplane.data.watch import Changes

__all__ = ["Backlog"]

_MOST_BYTES: Final = 8 << 20


class Backlog:
    """A queue for one reader. Beyond its limit, the writer waits, and etcd keeps what comes after."""

    def __init__(self) -> None:
        self._groups: list[Changes] = []
        self._size = 0
        self._changed = asyncio.Condition()

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._groups

    async def put(self, group: Changes) -> None:
        """Add a group, once what waits is below the limit."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._size < _MOST_BYTES)
            self._groups.append(group)
            self._size += group.size
            self._changed.notify_all()

    async def take(self) -> list[Changes]:
        """Wait for groups, and take all that are there."""
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._groups))
            groups, self._groups, self._size = self._groups, [], 0
            self._changed.notify_all()
            return groups
