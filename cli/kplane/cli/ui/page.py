"""HTTP server of the page and its content, at an address that contains a key."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib import resources
from typing import Any, Final

from aiohttp import web

__all__ = ["serving"]

_HOST: Final = "127.0.0.1"
_FILES: Final = {
    "": ("page.html", "text/html"),
    "page.css": ("page.css", "text/css"),
    "page.js": ("page.js", "text/javascript"),
}
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@contextlib.asynccontextmanager
async def serving(fleet: Callable[[], Mapping[str, Any]], *, port: int) -> AsyncIterator[str]:
    """Serve the page on 127.0.0.1 within this context, and yield its address.

    `fleet` returns the present content. The key in the address keeps away other users of the machine, and pages of
    other sites. Port 0 chooses a free port. Raises OSError if the port is in use.
    """
    key = secrets.token_urlsafe(24)
    app = web.Application()

    async def content(_: web.Request) -> web.Response:
        return web.json_response(fleet(), headers=_HEADERS)

    app.router.add_get(f"/{key}/fleet", content)
    for name, (file, content_type) in _FILES.items():
        app.router.add_get(f"/{key}/{name}", _answer(file, content_type=content_type))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, _HOST, port).start()
        yield f"http://{_HOST}:{runner.addresses[0][1]}/{key}/"
    finally:
        await runner.cleanup()


def _answer(file: str, *, content_type: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    body = resources.files("kplane.cli.ui").joinpath(file).read_bytes()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=_HEADERS)

    return answer
