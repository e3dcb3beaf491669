"""A TLS server that answers like an API server in front of pods."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from aiohttp import web

from kplane.provider import Client
from tests.tls_server import serve_over_tls

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def serving(
    routes: dict[str, Handler], directory: Path, *, timeout_seconds: float = 10.0
) -> AsyncIterator[Client]:
    """Serve GET for the paths of `routes`, and yield a client."""
    app = web.Application()
    for path, handler in routes.items():
        app.router.add_get(path, handler)
    async with (
        serve_over_tls(app, directory) as config,
        Client(config, timeout_seconds=timeout_seconds, field_manager="kplane") as client,
    ):
        yield client


def refusal(code: int, reason: str) -> web.Response:
    """Return the Status of a refused request."""
    return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": "no"}, status=code)
