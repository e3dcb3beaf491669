"""Detects an API server that hangs: its connections stay open, but carry no data."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from kplane.provider.errors import ProviderError, Unreachable

__all__ = ["IDLE_SECONDS", "PROBE_SECONDS", "Liveness"]

IDLE_SECONDS: Final = 30.0
"""Time without data after which the server is probed, equal to ReadIdleTimeout of client-go's HTTP/2 pings."""
PROBE_SECONDS: Final = 15.0
"""Deadline of a probe, equal to PingTimeout of client-go."""


class Liveness:
    """Remembers when the server last sent data, and probes a silent server. All watches of a client share the object.

    `probe` sends a request by another connection than the watches, and raises Unreachable without an answer. Any answer
    counts, also an error.
    """

    def __init__(self, probe: Callable[[], Awaitable[None]]) -> None:
        self._probe = probe
        self._turn = asyncio.Lock()
        self._heard_at = float("-inf")
        self._failed_at = float("-inf")
        self._failure = ""

    def heard(self) -> None:
        """Note that the server has sent data."""
        self._heard_at = asyncio.get_running_loop().time()

    async def check(self) -> float:
        """Return the seconds after which to check again. Probes the server if it was silent for `IDLE_SECONDS`.

        Raises Unreachable if the server gives no answer.
        """
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        async with self._turn:
            if self._failed_at >= began_at:
                # The probe of another watch failed meanwhile.
                raise Unreachable(self._failure, kind="timeout")
            if (left := self._heard_at + IDLE_SECONDS - loop.time()) > 0:
                return left
            probed_at = loop.time()
            try:
                await self._probe()
            except Unreachable as error:
                if error.kind in {"connect", "timeout"} and self._heard_at < probed_at:
                    self._failed_at, self._failure = loop.time(), str(error)
                    raise
            except ProviderError:
                # A refusal is an answer, and unusable credentials are no failure of the server.
                pass
            self.heard()
            return IDLE_SECONDS
