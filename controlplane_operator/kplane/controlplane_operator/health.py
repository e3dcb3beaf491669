"""HTTP server of /healthz, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from kplane.provider.serving.listening import listening

__all__ = ["Check", "serve_health"]

Check = Callable[[], str | None]
"""Function that returns the problem of a part as a sentence; None if there is none.

A check only reads state in memory and sends no request, so that callers of the port may repeat it at any rate.
"""


@asynccontextmanager
async def serve_health(
    host: str,
    *,
    port: int,
    checks: Mapping[str, Check],
    notes: Mapping[str, Callable[[], str]],
    metrics: CollectorRegistry,
) -> AsyncIterator[None]:
    """Serve while the context is open: /healthz while the event loop runs, /readyz by the checks, and /metrics.

    `notes` appear with the checks, and never fail. Raises ListenFailed if the address is not available.
    """

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        problems = [check() for check in checks.values()]
        lines = [
            f"[{'-' if problem else '+'}]{name} {problem or 'ok'}"
            for name, problem in zip(checks, problems, strict=True)
        ]
        lines += [f"[+]{name} {tell()}" for name, tell in notes.items()]
        return web.Response(text="\n".join(lines) + "\n", status=503 if any(problems) else 200)

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.add_routes(
        [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", show_metrics)]
    )
    async with listening(application, host=host, port=port, flag="--listen"):
        yield
