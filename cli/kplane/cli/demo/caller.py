"""Caller of APIs: sends requests during an outage, and counts answers and errors."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from http import HTTPStatus
from typing import Final

import aiohttp

from kplane.cli.demo.sessions import open_session
from kplane.cli.errors import DemoFailed
from kplane.provider import ClusterConfig

__all__ = ["Caller"]

_PATH: Final = "/api/v1/namespaces"
_PAUSE_SECONDS: Final = 0.05
"""Time between two requests to an API. Without it, the requests would take the CPU from programs that start."""
_SHOWN: Final = 3
"""Number of failed requests in the error message."""


class Caller:
    """Lists the namespaces of control planes repeatedly, without retries."""

    def __init__(self, configs: Iterable[ClusterConfig]) -> None:
        """Call the servers of these configurations."""
        self.answered = 0
        self.slowest_seconds = 0.0
        self.errors: list[str] = []
        self._configs = tuple(configs)

    @contextlib.asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        """Call all servers inside the block, each server at least once."""
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for config in self._configs:
                group.create_task(self._call(config, ended), name=f"call {config.server}")
            try:
                yield
            finally:
                ended.set()

    def verify(self) -> None:
        """Raise `DemoFailed` if a request failed."""
        if self.errors:
            raise DemoFailed(
                f"failed to get an answer to each request: {len(self.errors)} of {self.answered + len(self.errors)} "
                f"got none; the first: {'; '.join(self.errors[:_SHOWN])}"
            )

    async def _call(self, config: ClusterConfig, ended: asyncio.Event) -> None:
        async with open_session(config, once=True) as session:
            while True:
                begun = time.monotonic()
                try:
                    async with session.get(f"{config.server}{_PATH}") as answer:
                        text = await answer.text()
                        if answer.status != HTTPStatus.OK:
                            self.errors.append(f"{config.server}: {answer.status} {text}")
                        else:
                            self.answered += 1
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    self.errors.append(f"{config.server}: {type(error).__name__}: {error}")
                self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - begun)
                if ended.is_set():
                    return
                await asyncio.sleep(_PAUSE_SECONDS)
