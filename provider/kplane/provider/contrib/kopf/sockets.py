"""Sockets of kopf, which must close before its event loop ends."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final

import aiohttp

__all__ = ["KopfSockets"]

log: Final = logging.getLogger(__name__)

_CLOSE_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.01


class KopfSockets:
    """Tracks open sockets: pass `open` to aiohttp's connectors, and await `closed` before the loop ends."""

    def __init__(self) -> None:
        self._open: list[socket.socket] = []

    def open(self, address: aiohttp.AddrInfoType) -> socket.socket:
        """Open a socket for an address."""
        opened = socket.socket(family=address[0], type=address[1], proto=address[2])
        self._open = [*(former for former in self._open if former.fileno() != -1), opened]
        return opened

    async def closed(self) -> None:
        """Wait until all sockets are closed, at most 3 s. Logs a warning at the time-out."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                while any(opened.fileno() != -1 for opened in self._open):  # noqa: ASYNC110 - sockets have no event
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            log.warning("failed to close all connections of kopf within %g s", _CLOSE_SECONDS)
