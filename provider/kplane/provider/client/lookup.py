"""Looks host names up, so that silent name servers block no other lookups.

getaddrinfo blocks its thread for as long as name servers are silent, and cannot be cancelled. Event loops run it in
small pools (four threads with uvloop). A handful of dead names would stop every new connection there. Here each name
has a thread of its own, and one at a time, however many callers ask for it and give up.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from concurrent.futures import Future
from typing import Any, Final

from aiohttp.abc import AbstractResolver, ResolveResult
from typing_extensions import override

__all__ = ["Resolver"]

_AT_ONCE: Final = 256
"""Names that are looked up at the same time in one process: a thread that waits costs little, but not nothing."""

_Found = list[tuple[Any, ...]]
_Name = tuple[str, socket.AddressFamily]

_guard: Final = threading.Lock()
_under_way: Final[dict[_Name, Future[_Found]]] = {}


class Resolver(AbstractResolver):
    """Resolves host names for aiohttp's connectors."""

    @override
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a host; raises OSError, socket.gaierror among them."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[_Found] = loop.create_future()

        def notify(done: Future[_Found]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended since
                loop.call_soon_threadsafe(_settle, waiting, done)

        _begin((host, family)).add_done_callback(notify)
        return [_result(host, port, found) for found in await waiting]

    @override
    async def close(self) -> None:
        """Do nothing."""


def _begin(name: _Name) -> Future[_Found]:
    with _guard:
        known = _under_way.get(name)
        if known is not None:
            return known
        if len(_under_way) >= _AT_ONCE:
            raise OSError(f"{_AT_ONCE} other host names are being looked up; are the name servers silent?")
        future: Future[_Found] = Future()
        future.set_running_or_notify_cancel()
        _under_way[name] = future
    # A daemon: the end of the program waits for no name server.
    threading.Thread(target=_look_up, args=(name, future), name=f"look up {name[0]}", daemon=True).start()
    return future


def _look_up(name: _Name, future: Future[_Found]) -> None:
    host, family = name
    try:
        found = socket.getaddrinfo(host, None, family, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG)
    except Exception as error:  # noqa: BLE001 - whatever it is, those who wait are told
        with _guard:
            del _under_way[name]
        future.set_exception(error)
    else:
        with _guard:
            del _under_way[name]
        future.set_result(found)


def _settle(waiting: asyncio.Future[_Found], done: Future[_Found]) -> None:
    if waiting.done():
        return  # who waited has given up
    error = done.exception()
    if error is not None:
        waiting.set_exception(error)
    else:
        waiting.set_result(done.result())


def _result(host: str, port: int, found: tuple[Any, ...]) -> ResolveResult:
    family, _, protocol, _, address = found
    # An IPv6 address that is good on one link only needs to be told which.
    scope = f"%{address[3]}" if family == socket.AF_INET6 and address[3] else ""
    return ResolveResult(
        hostname=host,
        host=f"{address[0]}{scope}",
        port=port,
        family=family,
        proto=protocol,
        flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
    )
