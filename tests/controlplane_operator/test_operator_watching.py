"""Watches of the management cluster with kopf, when the API server refuses them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from kopf._core.reactor import running

from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.watch.cache import Store
from kplane.controlplane_operator.watch.feeds import KopfFeeds
from kplane.provider.aio.backoff import Backoff


@pytest.mark.collect_garbage
async def test_kopf_feeds_restart_kopf_after_it_gives_up(
    tls_server: Any, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backoff, "next_delay", lambda *_: 0.01)
    # After a failure of a task, kopf lets the other tasks run for five seconds.
    wait = running.aiotasks.wait

    async def impatient(tasks: Any, *, timeout: float | None = None, **named: Any) -> Any:
        return await wait(tasks, timeout=None if timeout is None else 0.05, **named)

    monkeypatch.setattr(running, "aiotasks", SimpleNamespace(**{**vars(running.aiotasks), "wait": impatient}))
    request_paths: list[str] = []

    async def refuse(request: web.BaseRequest) -> web.Response:
        """Answer with status 415, after which kopf gives up."""
        request_paths.append(request.path)
        return web.json_response({"kind": "Status", "code": 415}, status=415)

    async with tls_server(refuse) as config:
        watching = KopfFeeds(lambda: config, stores=[Store(CONTROL_PLANES)], label_selectors={}, listed=lambda: None)
        following = asyncio.create_task(watching.run())
        try:
            await eventually(lambda: request_paths.count("/apis"), lambda count: count >= 2)
        finally:
            following.cancel()
            await asyncio.wait((following,))


def test_feeds_import_no_other_kubernetes_client() -> None:
    program = """
import sys
import kplane.controlplane_operator.watch.feeds
assert not {"kubernetes", "kubernetes_asyncio", "pykube"} & sys.modules.keys()
import kubernetes.client
"""
    subprocess.run([sys.executable, "-c", program], check=True)
