"""Serves an application of aiohttp for as long as a block runs."""

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
    """Serve while within, with `tls` if given; gives host and port, of which 0 takes a free one. Raises ListenFailed.

    `flag` is that of the address, for the message. At the end, running requests have `close_seconds` for their answers.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=close_seconds)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, ssl_context=tls).start()
        except OSError as error:
            where = f"{host}:{port} ({flag})" if flag is not None else f"{host}:{port}"
            raise ListenFailed(f"cannot listen on {where}: {error.strerror}") from error
        found = runner.addresses[0]
        yield found[0], found[1]
    finally:
        await runner.cleanup()
