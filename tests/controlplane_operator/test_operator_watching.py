"""How the operator follows the management cluster, where that cannot be followed."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from controlplane_operator.cache import Store
from controlplane_operator.credentials import create_authority, issue_serving
from controlplane_operator.kinds import CONTROL_PLANES
from controlplane_operator.watching import Watching
from provider import ClusterConfig


@contextlib.asynccontextmanager
async def refusing(directory: Path) -> AsyncIterator[tuple[ClusterConfig, list[str]]]:
    """An API server that refuses everything with an answer after which kopf tries no more, and what it was asked."""
    authority = create_authority("refusing")
    serving = issue_serving(authority, common_name="refusing", hosts=["127.0.0.1"])
    (directory / "pair").write_bytes(serving.certificate + serving.key)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(directory / "pair")
    asked: list[str] = []

    async def refuse(request: web.BaseRequest) -> web.Response:
        asked.append(request.path)
        return web.json_response({"kind": "Status", "code": 415}, status=415)

    runner = web.ServerRunner(web.Server(refuse))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        host, port = runner.addresses[0]
        yield ClusterConfig(f"https://{host}:{port}", ca_data=authority.certificate), asked
    finally:
        await runner.cleanup()


async def test_where_kopf_gives_up_it_is_started_again(tmp_path: Path, eventually: Callable[..., Any]) -> None:
    async with refusing(tmp_path) as (config, asked):
        watching = Watching(lambda: config, stores=[Store(CONTROL_PLANES)], label_selectors={}, listed=lambda: None)
        following = asyncio.create_task(watching.run())
        try:
            await eventually(lambda: asked.count("/apis"), lambda count: count >= 2, timeout=30.0)
        finally:
            following.cancel()
            await asyncio.wait((following,))
