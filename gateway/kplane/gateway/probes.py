"""Probes: asks API servers at host names whether they are ready."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Final

import aiohttp

from kplane.gateway.envoy.readiness import READY_PATH, READY_STATUSES
from kplane.gateway.routes import Upstream
from kplane.provider.aio.cancellation import end_tasks

__all__ = ["Probes"]

_TIMEOUT: Final = 1.0
"""Seconds after which an API server without an answer counts as not ready, as in Envoy's checks."""
_PAUSE_SECONDS: Final = 0.2
"""Seconds between two probes of an API server that is not ready."""
_DENIED: Final = 403
_DENIED_SECONDS: Final = 10.0
"""Seconds after which an API server that answers 403 counts as ready.

An API server answers 403 for some seconds, until it has loaded RBAC roles. Afterwards, the tenant has removed the
permission of anonymous clients to read `/readyz`.
"""


class Probes:
    """Asks API servers for `/readyz`. All connections to an API server share its probe.

    The gateway has no credential and no CA of these API servers. So it asks anonymously, and tells the server nothing.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: dict[tuple[str, int], asyncio.Task[bool]] = {}
        self._denied_since: dict[tuple[str, int], float] = {}
        """Time since which an API server has answered each probe with 403, by address."""
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls.check_hostname = False
        self._tls.verify_mode = ssl.CERT_NONE
        self._tls.set_alpn_protocols(["http/1.1"])

    async def is_ready(self, upstream: Upstream) -> bool:
        """Return whether an API server is ready. If it is not, the answer takes a moment, so that callers may repeat.

        An API server with a DNS name counts as ready: the name belongs to a Service, which selects only ready pods.
        """
        if not upstream.is_address:
            return True
        address = upstream.address
        probe = self._running.get(address)
        if probe is None:
            probe = self._running[address] = asyncio.create_task(self._probe(upstream), name=f"probe {address}")
        # A client that disconnects must not end the probe of other clients.
        await asyncio.wait([probe])
        return not probe.cancelled() and probe.result()

    async def aclose(self) -> None:
        """End all probes."""
        await end_tasks(self._running.values())

    async def _probe(self, upstream: Upstream) -> bool:
        try:
            is_ready = self._counts_as_ready(upstream.address, await self._ask(upstream))
            if not is_ready:
                await asyncio.sleep(_PAUSE_SECONDS)
            return is_ready
        finally:
            del self._running[upstream.address]

    def _counts_as_ready(self, address: tuple[str, int], status: int | None) -> bool:
        if status != _DENIED:
            self._denied_since.pop(address, None)
            return status in READY_STATUSES
        now = self._clock()
        return now - self._denied_since.setdefault(address, now) >= _DENIED_SECONDS

    async def _ask(self, upstream: Upstream) -> int | None:
        """Return the status code of `/readyz`; None without an answer."""
        host = f"[{upstream.host}]" if ":" in upstream.host else upstream.host
        connector = aiohttp.TCPConnector(ssl=self._tls, force_close=True)
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                session.get(f"https://{host}:{upstream.port}{READY_PATH}", allow_redirects=False) as answer,
            ):
                return answer.status
        except (OSError, aiohttp.ClientError, TimeoutError):
            return None
