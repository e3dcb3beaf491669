"""HTTP server of /healthz, /readyz, /clusters with a summary of every cluster, and /metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from kplane.api.configuration import HostPort
from kplane.mcm.instance.memory import pss_by_pid
from kplane.mcm.serving.metrics import Metrics
from kplane.mcm.serving.overview import Overview
from kplane.mcm.serving.table import ClusterDetails, render_checks, render_table
from kplane.provider.serving.listening import listening

__all__ = ["serve_status"]


@contextlib.asynccontextmanager
async def serve_status(
    listen: HostPort, *, overview: Overview, metrics: Metrics, sources: str, synced: Callable[[], bool]
) -> AsyncIterator[None]:
    """Serve HTTP inside the block. `synced` returns whether all objects that stand for control planes have been read.

    `sources` is the plural name of these objects. `/healthz` answers while the event loop turns. `/readyz` is 200 after
    all objects have been read. `/readyz?verbose` lists each cluster too. Failing instances never make mcm unready,
    because that would help no instance. `/clusters` has more details, as JSON, or as a table for text/plain or
    `?format=table`. Raises ListenFailed if the address cannot be listened on.
    """

    not_synced = f"the {sources} have not been read yet; see the log"

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(request: web.Request) -> web.Response:
        ready = synced()
        if "verbose" in request.query:
            text = render_checks({sources: "" if ready else not_synced}, clusters=overview.summaries())
        else:
            text = "ok\n" if ready else f"{not_synced}\n"
        return web.Response(text=text, status=200 if ready else 503)

    async def show_clusters(request: web.Request) -> web.Response:
        form = request.query.get("format") or ("table" if _prefers_text(request.headers.get("Accept", "")) else "json")
        if form not in {"json", "table"}:
            raise web.HTTPBadRequest(text="format is json or table\n")
        details = await _details(overview)
        if form == "table":
            return web.Response(text=render_table(details))
        return web.json_response({"clusters": {cluster.summary.name: cluster.to_json() for cluster in details}})

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=await metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz)])
    app.add_routes([web.get("/clusters", show_clusters), web.get("/metrics", show_metrics)])
    async with listening(app, host=listen.host, port=listen.port, flag="--listen"):
        yield


async def _details(overview: Overview) -> Sequence[ClusterDetails]:
    summaries = overview.summaries()
    pss = await asyncio.to_thread(pss_by_pid, [pid for summary in summaries for pid in summary.pids])
    return [
        ClusterDetails(summary, sum(pss[pid] for pid in summary.pids if pid in pss) or None) for summary in summaries
    ]


def _prefers_text(accept: str) -> bool:
    """Whether the client accepts text/plain and not JSON. Browsers and curl accept any type, and get JSON."""
    kinds = {kind.partition(";")[0].strip() for kind in accept.split(",")}
    return "text/plain" in kinds and "application/json" not in kinds
