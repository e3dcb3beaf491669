"""Serves /healthz, /readyz with a summary of every cluster, and /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import orjson
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest

from mcm.instances import Instance
from mcm.metrics import InstanceCollector
from workloads import Phase

__all__ = ["serve_status"]

_FAILED: Final = "Failed"
"""State of a cluster that no instance can be started for."""


@asynccontextmanager
async def serve_status(
    host: str,
    *,
    port: int,
    instances: Callable[[], Sequence[Instance]],
    failure: Callable[[str], str | None],
    synced: Callable[[], bool],
) -> AsyncIterator[None]:
    """Serve while within. Raises OSError where the address cannot be had.

    /readyz is 200 once the registrations are known (`synced`), whatever single tenants are like: one that fails must
    not take the others' controllers down with the Pod. `failure` tells why a cluster has no instance.
    """

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        ready = synced()
        body = {
            "ready": ready,
            "clusters": {found.cluster: _summary(found, failure(found.cluster)) for found in instances()},
        }
        return web.Response(body=orjson.dumps(body), status=200 if ready else 503, content_type="application/json")

    async def metrics(_: web.Request) -> web.Response:
        registry = CollectorRegistry()
        registry.register(InstanceCollector(instances()))
        ProcessCollector(registry=registry)
        # Memory is read from /proc, which takes a millisecond for each instance.
        body = await asyncio.to_thread(generate_latest, registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield
    finally:
        await runner.cleanup()


def _summary(instance: Instance, failure: str | None) -> dict[str, Any]:
    failed = failure is not None and instance.phase is Phase.ABSENT
    return {
        "state": _FAILED if failed else instance.phase,
        "server": instance.server,
        "profile": instance.profile,
        "pid": instance.pid,
        "restarts": instance.restarts,
        "message": failure if failed else instance.message,
    }
