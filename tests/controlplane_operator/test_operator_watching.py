"""How the operator follows the management cluster, where that cannot be followed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

from controlplane_operator.cache import Store
from controlplane_operator.kinds import CONTROL_PLANES
from controlplane_operator.watching import Watching


async def test_where_kopf_gives_up_it_is_started_again(tls_server: Any, eventually: Callable[..., Any]) -> None:
    asked: list[str] = []

    async def refuse(request: web.BaseRequest) -> web.Response:
        """Answer what has kopf try no more."""
        asked.append(request.path)
        return web.json_response({"kind": "Status", "code": 415}, status=415)

    async with tls_server(refuse) as config:
        watching = Watching(lambda: config, stores=[Store(CONTROL_PLANES)], label_selectors={}, listed=lambda: None)
        following = asyncio.create_task(watching.run())
        try:
            await eventually(lambda: asked.count("/apis"), lambda count: count >= 2)
        finally:
            following.cancel()
            await asyncio.wait((following,))
