"""Serves /healthz, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from kplane.provider.serving.listening import listening

__all__ = ["Check", "serve_health"]

Check = Callable[[], str | None]
"""Returns None if all is well, else a sentence that says what is wrong.

A check reads what is known and sends no request, so that callers of the port may repeat it as often as they like.
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
    """Serve while within: /healthz as long as the loop turns, /readyz by the checks, /metrics from the registry.

    `notes` are shown with the checks, and are always well.
    Raises ListenFailed if the address cannot be listened on.
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
