"""HTTP sessions with control planes."""

from __future__ import annotations

from typing import Final

import aiohttp

from kplane.provider import ClusterConfig
from kplane.provider.client.tls import ssl_context

__all__ = ["NotAnswered", "open_session"]

_ANSWER_SECONDS: Final = 60.0


class NotAnswered(aiohttp.ClientError):
    """The connection closed before the answer."""


def open_session(config: ClusterConfig, *, once: bool = False) -> aiohttp.ClientSession:
    """Open a session with the credentials of `config`; the caller closes it.

    If a connection closes without an answer, aiohttp resends a request unless it is POST or PATCH. With `once`, no
    request is resent. Each request then has a connection of its own, because an idle connection may close at any time.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=ssl_context(config), force_close=once),
        headers={} if config.token is None else {"Authorization": f"Bearer {config.token}"},
        timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS),
        middlewares=(_send_once,) if once else (),
    )


async def _send_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Send the request; if the connection closes, raise an error after which aiohttp does not resend it."""
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise NotAnswered(f"{type(error).__name__}: {error}") from error
