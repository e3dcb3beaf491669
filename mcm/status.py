"""Serves /healthz, /readyz with a summary of every cluster, and /metrics."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from mcm.errors import McmError
from mcm.fleet import Fleet
from mcm.metrics import Metrics
from mcm.settings import Listen

__all__ = ["serve_status"]


@contextlib.asynccontextmanager
async def serve_status(listen: Listen, *, fleet: Fleet, synced: Callable[[], bool]) -> AsyncIterator[None]:
    """Serve while within. `synced` says whether all objects that stand for control planes have been read once.

    `/healthz` answers as long as the loop turns. `/readyz` is 200 from the time that these are known, with
    a summary for each cluster: instances that fail never make mcm itself unready, as that would help none of them.
    Raises McmError where the address cannot be listened on.
    """
    metrics = Metrics(fleet)

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        ready = synced()
        document = {
            "ready": ready,
            "message": "" if ready else "the control planes are not known yet; see the log for what is in the way",
            "clusters": {summary.name: summary.to_json() for summary in fleet.summaries()},
        }
        return web.json_response(document, status=200 if ready else 503)

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=await metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", show_metrics)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, listen.host, listen.port).start()
        except OSError as error:
            raise McmError(f"cannot listen on {listen.host}:{listen.port} (--listen): {error.strerror}") from error
        yield
    finally:
        await runner.cleanup()
