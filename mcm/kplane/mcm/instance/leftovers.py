"""Removal of the files of ended instances. A directory that cannot be removed does not block any instance."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final, NoReturn

from kplane.provider.aio.backoff import Backoff
from kplane.workloads import Runtime, WorkloadsError

__all__ = ["Leftovers"]

logger: Final = logging.getLogger(__name__)


class Leftovers:
    """Removes the components of instances that have ended, and retries failed removals."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._names: set[str] = set()
        self._found = asyncio.Event()

    async def remove_former(self) -> None:
        """Remove the leftovers of a crashed mcm: files with credentials, and possibly processes."""
        names = self._runtime.names()
        if names:
            logger.info("removing the leftovers of %d instances of an earlier run", len(names))
        await self.remove(names)

    async def remove(self, names: Iterable[str]) -> str:
        """Remove these components. Return the errors, empty if there are none; they are logged, and `run` retries."""
        return " ".join(filter(None, await asyncio.gather(*map(self._remove, names))))

    async def run(self, in_use: Callable[[], Collection[str]]) -> NoReturn:
        """Retry failed removals until cancelled.

        `in_use` returns the components that have an instance again. Their instances remove them when they end.
        """
        backoff = Backoff(initial_seconds=1.0, maximum_seconds=300.0)
        while True:
            await self._found.wait()
            await asyncio.sleep(backoff.next_delay())
            await asyncio.gather(*(self._retry(name, in_use) for name in tuple(self._names)))
            if not self._names:
                self._found.clear()
                backoff.reset()

    async def _retry(self, name: str, in_use: Callable[[], Collection[str]]) -> None:
        if name in in_use():
            self._names.discard(name)
        else:
            await self._remove(name)

    async def _remove(self, name: str) -> str:
        try:
            await self._runtime.delete(name)
        except (WorkloadsError, OSError) as error:
            self._names.add(name)
            self._found.set()
            logger.error("failed to remove the files of instance %s: %s; mcm retries", name, error)  # noqa: TRY400
            return str(error) or repr(error)
        self._names.discard(name)
        return ""
