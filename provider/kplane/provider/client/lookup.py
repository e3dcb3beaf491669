"""Looks host names up, so that silent name servers block no other lookups.

getaddrinfo blocks its thread while name servers are silent, and cannot be cancelled. Event loops run it in small pools
(four threads with uvloop), so a handful of dead names would stop every new connection. Here each lookup has a thread of
its own, which all callers for the same name share.
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

_MAX_LOOKUPS: Final = 256
"""Maximum number of concurrent lookups, and of their threads, in a process."""

_Found = list[tuple[Any, ...]]
_Name = tuple[str, socket.AddressFamily]

_guard: Final = threading.Lock()
_pending: Final[dict[_Name, Future[_Found]]] = {}


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
        """Keep everything: lookups end by themselves."""


def _begin(name: _Name) -> Future[_Found]:
    with _guard:
        pending = _pending.get(name)
        if pending is not None:
            return pending
        if len(_pending) >= _MAX_LOOKUPS:
            raise OSError(f"{_MAX_LOOKUPS} other host names are being looked up; are the name servers silent?")
        future: Future[_Found] = Future()
        future.set_running_or_notify_cancel()
        _pending[name] = future
    # A daemon thread, so that the exit of the program does not wait for name servers.
    threading.Thread(target=_look_up, args=(name, future), name=f"look up {name[0]}", daemon=True).start()
    return future


def _look_up(name: _Name, future: Future[_Found]) -> None:
    host, family = name
    try:
        found = socket.getaddrinfo(host, None, family, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG)
    except Exception as error:  # noqa: BLE001 - waiting callers get any error
        with _guard:
            del _pending[name]
        future.set_exception(error)
    else:
        with _guard:
            del _pending[name]
        future.set_result(found)


def _settle(waiting: asyncio.Future[_Found], done: Future[_Found]) -> None:
    if waiting.done():
        return  # the caller has given up
    error = done.exception()
    if error is not None:
        waiting.set_exception(error)
    else:
        waiting.set_result(done.result())


def _result(host: str, port: int, found: tuple[Any, ...]) -> ResolveResult:
    family, _, protocol, _, address = found
    # A link-local IPv6 address needs its scope: the network interface.
    scope = f"%{address[3]}" if family == socket.AF_INET6 and address[3] else ""
    return ResolveResult(
        hostname=host,
        host=f"{address[0]}{scope}",
        port=port,
        family=family,
        proto=protocol,
        flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
    )
