"""Envoy with the authorizer beside it, as one thing that serves the routes that it is given."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Final

import aiohttp

from kplane.gateway.administration import Administration
from kplane.gateway.authorizer import Authorizer
from kplane.gateway.envoy.listener import Serving
from kplane.gateway.files import Publisher, Validator, Versions
from kplane.gateway.program import ENVOY, envoy_component
from kplane.gateway.routes import Route
from kplane.workloads import Runtime

__all__ = ["DataPlane"]

logger = logging.getLogger(__name__)

_CONFIRMED_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.05


class DataPlane:
    """Serves routes. It is an async context manager by `running`, and one task at a time calls `apply`."""

    def __init__(
        self, directory: Path, *, validate: Validator, program: Path, runtime: Runtime | None, workers: int = 2
    ) -> None:
        """`directory` is the gateway's alone. Without `runtime`, Envoy runs as a container of its own."""
        self._publisher = Publisher(directory, validate=validate)
        self._authorizer = Authorizer()
        self._administration: Administration | None = None
        self._program = program
        self._runtime = runtime
        self._workers = workers
        self._published: Versions | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have authorizer and Envoy run. Until the first `apply`, Envoy serves by the last good files, if there are."""
        layout = self._publisher.layout
        await self._publisher.prepare()
        async with (
            Administration(layout.administration) as self._administration,
            self._authorizer.listening(Path(layout.authorizer)),
        ):
            await self._start()
            yield

    async def apply(self, routes: Iterable[Route], *, serving: Serving) -> Mapping[str, str]:
        """Serve these routes and no others, and return when that is so, or Envoy does not confirm it in time.

        Returns by key what cannot be served. Raises ConfigurationRejected if the listener is refused.
        """
        published = await self._publisher.publish(routes, serving=serving)
        self._authorizer.serve(published.routes)
        self._published = published.versions
        await self._start()
        await self._confirm()
        return published.refused

    async def ready(self) -> bool:
        """Whether Envoy takes connections, and serves what it was last told to."""
        if self._administration is None or self._published is None:
            return False
        try:
            return await self._administration.live() and await self._administration.versions() == self._published
        except (OSError, aiohttp.ClientError, TimeoutError):
            return False

    async def numbers(self) -> Mapping[str, int]:
        """Return what Envoy counts of API servers. Raises OSError, aiohttp.ClientError or TimeoutError."""
        if self._administration is None:
            return {}
        return await self._administration.numbers("^cluster\\.")

    async def stop(self) -> None:
        """End Envoy, if it runs by this data plane's runtime."""
        if self._runtime is not None:
            await self._runtime.stop(ENVOY)

    async def _start(self) -> None:
        if self._runtime is not None:
            component = envoy_component(self._program, layout=self._publisher.layout, workers=self._workers)
            await self._runtime.apply(component)

    async def _confirm(self) -> None:
        deadline = time.monotonic() + _CONFIRMED_SECONDS
        while time.monotonic() < deadline:
            if await self.ready():
                return
            await asyncio.sleep(_POLL_SECONDS)
        logger.warning("Envoy has not confirmed the present configuration within %.0f s", _CONFIRMED_SECONDS)
