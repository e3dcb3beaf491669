"""Opens HTTP sessions to control planes, which send each request once."""

from __future__ import annotations

from typing import Final

import aiohttp

from kplane.provider import ClusterConfig
from kplane.provider.client.tls import ssl_context

__all__ = ["open_session"]

_ANSWER_SECONDS: Final = 60.0


def open_session(config: ClusterConfig) -> aiohttp.ClientSession:
    """Open a session with the credentials of `config`; the caller closes it.

    aiohttp sends a request again if a kept connection turns out to be closed, but never POST or PATCH.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=ssl_context(config)),
        headers={} if config.token is None else {"Authorization": f"Bearer {config.token}"},
        timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS),
    )
