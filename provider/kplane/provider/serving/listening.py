"""Context that serves an application of aiohttp."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator

from aiohttp import web

from kplane.provider.errors import ListenFailed

__all__ = ["listening"]


@contextlib.asynccontextmanager
async def listening(
    app: web.Application,
    *,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    flag: str | None = None,
    close_seconds: float = 1.0,
) -> AsyncIterator[tuple[str, int]]:
    """Serve an application within the context, and yield host and port. `port=0` takes a free port.

    `flag` is the command-line flag of the address, for the error message. At the end, running requests have
    `close_seconds` for their answers. Raises ListenFailed if the address cannot be listened on.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=close_seconds)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, ssl_context=tls).start()
        except OSError as error:
            address = f"{host}:{port} ({flag})" if flag is not None else f"{host}:{port}"
            raise ListenFailed(f"cannot listen on {address}: {error.strerror}") from error
        socket_address = runner.addresses[0]
        yield socket_address[0], socket_address[1]
    finally:
        await runner.cleanup()
