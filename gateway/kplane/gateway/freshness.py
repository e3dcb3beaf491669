"""Freshness: before a refusal, requests wait until this replica has the routes that other replicas serve already."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from kplane.gateway.clients import Client, ClientLimits
from kplane.gateway.control_planes import Progress
from kplane.gateway.errors import Declined
from kplane.provider import ProviderError
from kplane.provider.aio.cancellation import end_tasks

__all__ = ["Freshness"]

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 3.0
"""Maximum seconds that a request waits for the routes of other replicas."""
_READ_SECONDS: Final = 5.0
"""Maximum seconds of a read of the other replicas' progress."""
_GATHERED_SECONDS: Final = 0.25
"""Seconds in which requests gather for a shared read. Replicas that have new routes report them within this time."""
_POLL_SECONDS: Final = 0.05
_ALL: Final = 100
"""Maximum number of waiting requests. Their credentials are not verified, and Envoy keeps their bodies."""
_EACH_CLIENT: Final = 20
"""Maximum number of waiting requests of a client address."""


class Freshness:
    """Compares the progress of this replica with the newest progress that any replica has reported.

    The operator publishes an address after a replica has reported its route. So a replica with the newest reported
    progress has the route of each published address. A list of control planes would tell less: its resourceVersion is
    that of the whole store, and a watch without events does not reach it for a minute.
    """

    def __init__(
        self,
        read_newest: Callable[[], Awaitable[Progress]],
        has: Callable[[Progress], bool],
        *,
        patience_seconds: float = _PATIENCE_SECONDS,
        all_together: int = _ALL,
        each_client: int = _EACH_CLIENT,
    ) -> None:
        """Create a freshness without waiting requests.

        `read_newest` reads the newest progress from the management cluster, and may raise ProviderError. `has` returns
        whether the routes of this replica include a progress. `patience_seconds` is the maximum wait after a read.
        `all_together` and `each_client` limit the number of waiting requests.
        """
        self._read_newest = read_newest
        self._has = has
        self._patience_seconds = patience_seconds
        self._all = all_together
        self._clients = ClientLimits(waiting=each_client)
        self._waiting = 0
        self._gathering: asyncio.Task[Progress | None] | None = None
        """Read that has not begun yet. A read that has begun may miss routes that are older than a new request."""
        self._reads: set[asyncio.Task[Progress | None]] = set()

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return self._waiting

    async def wait(self, client: Client) -> bool:
        """Wait until this replica has all routes that a replica had reported before this call.

        Returns False if the management cluster does not answer, or if this replica does not get the routes in time.
        Returns True at once if too many requests wait.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._place(client))
            except Declined:
                return True
            newest = await self._newest()
            if newest is None:
                return False
            deadline = time.monotonic() + self._patience_seconds
            while time.monotonic() < deadline:
                if self._has(newest):
                    return True
                # The progress also grows by lists and bookmarks, which cause no event.
                await asyncio.sleep(_POLL_SECONDS)
            return False

    async def aclose(self) -> None:
        """End all reads."""
        await end_tasks(self._reads)

    @contextlib.contextmanager
    def _place(self, client: Client) -> Iterator[None]:
        if self._waiting >= self._all:
            raise Declined(429, "too many requests wait for the routes of other replicas")
        with self._clients.place(client):
            self._waiting += 1
            try:
                yield
            finally:
                self._waiting -= 1

    async def _newest(self) -> Progress | None:
        """Return the progress by a read that begins after this call; None if the read fails."""
        read = self._gathering
        if read is None:
            read = self._gathering = asyncio.create_task(self._read(), name="read the progress of other replicas")
            self._reads.add(read)
            read.add_done_callback(self._reads.discard)
        # A client that disconnects must not end the read of other requests.
        await asyncio.wait([read])
        return None if read.cancelled() else read.result()

    async def _read(self) -> Progress | None:
        try:
            await asyncio.sleep(_GATHERED_SECONDS)
        finally:
            self._gathering = None
        try:
            async with asyncio.timeout(_READ_SECONDS):
                return await self._read_newest()
        except (ProviderError, TimeoutError) as error:
            logger.warning("failed to read the progress of other replicas: %s", str(error) or "no answer in time")
            return None
