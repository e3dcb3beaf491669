"""Listens on the same local port for all addresses of a host name."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Sequence
from typing import Any, Final

from kplane.provider.errors import ListenFailed

__all__ = ["listen"]

_ATTEMPTS: Final = 20
_BACKLOG: Final = 128
_ABSENT: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""Errors that mean that the machine does not have the address, for example no IPv6."""


async def listen(host: str, port: int) -> list[socket.socket]:
    """Listen on every address of `host` at the same port; 0 selects a port that is free on all addresses.

    A program that connects to `localhost` may take 127.0.0.1 or ::1, so both must lead to the same place. The sockets
    do not block. Raises ListenFailed if the port is taken, or the machine has no address of that name.
    """
    try:
        resolved = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ListenFailed(f"failed to listen on {host}:{port}: {error.strerror}; give another host") from error
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in resolved))
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _listen(addresses, port)
        except OSError as error:
            # The port is free on the first address, but taken on another address.
            if port == 0 and error.errno == errno.EADDRINUSE and attempt < _ATTEMPTS:
                continue
            raise ListenFailed(
                f"failed to listen on {host}:{port}: {error.strerror}; choose another port, or 0 for a free one"
            ) from error
    raise AssertionError


def _listen(addresses: Sequence[tuple[socket.AddressFamily, tuple[Any, ...]]], port: int) -> list[socket.socket]:
    listening: list[socket.socket] = []
    with contextlib.ExitStack() as opened:
        absent: OSError | None = None
        for family, address in addresses:
            try:
                # An IPv6 address ends with flow information and scope.
                bound = socket.create_server((address[0], port, *address[2:]), family=family, backlog=_BACKLOG)
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                absent = error
                continue
            opened.callback(bound.close)
            bound.setblocking(False)
            listening.append(bound)
            port = bound.getsockname()[1]
        if absent is not None and not listening:
            raise absent
        opened.pop_all()
    return listening
