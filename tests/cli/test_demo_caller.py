"""The demo's caller counts answers of APIs and reports requests without an answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from kplane.cli.demo.caller import Caller
from kplane.cli.errors import DemoFailed
from kplane.provider import ClusterConfig
from tests.tls_server import serve_over_tls


class Api:
    """Counts requests for namespaces, and answers each request unless `broken` is set."""

    def __init__(self) -> None:
        self.requests = 0
        self.broken = False
        self.silent = False
        self.connections: set[object] = set()

    async def answer(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer secret"
        self.requests += 1
        self.connections.add(request.transport)
        if self.silent and request.transport is not None:
            request.transport.close()
        if self.broken:
            raise web.HTTPServiceUnavailable(text="no home")
        return web.json_response({"items": []})


@pytest.fixture
def api() -> Api:
    return Api()


@pytest_asyncio.fixture
async def config(api: Api, tmp_path: Path) -> AsyncIterator[ClusterConfig]:
    app = web.Application()
    app.router.add_get("/api/v1/namespaces", api.answer)
    async with serve_over_tls(app, tmp_path) as served:
        yield served


async def test_caller_calls_each_api_at_least_once(api: Api, config: ClusterConfig) -> None:
    caller = Caller([config, config])
    async with caller.calling():
        pass
    caller.verify()
    assert caller.answered == api.requests == 2


async def test_caller_counts_each_answer(
    api: Api, config: ClusterConfig, eventually: Callable[..., Awaitable[Any]]
) -> None:
    caller = Caller([config])
    async with caller.calling():
        await eventually(lambda: caller.answered > 3)
    caller.verify()
    assert caller.answered == api.requests


async def test_failed_request_fails_verification(
    api: Api, config: ClusterConfig, eventually: Callable[..., Awaitable[Any]]
) -> None:
    caller = Caller([config])
    async with caller.calling():
        await eventually(lambda: caller.answered > 0)
        api.broken = True
        await eventually(lambda: caller.errors)
        api.broken = False
    with pytest.raises(
        DemoFailed, match=r"failed to get an answer to each request: \d+ of \d+ got none; .*: 503 no ho"
    ):
        caller.verify()


async def test_unreachable_server_fails_verification(config: ClusterConfig) -> None:
    unreachable = ClusterConfig(server="https://127.0.0.1:9", ca_data=config.ca_data, token="secret")
    caller = Caller([unreachable])
    async with caller.calling():
        pass
    with pytest.raises(DemoFailed, match=r"1 of 1 got none; the first: https://127\.0\.0\.1:9: Client"):
        caller.verify()


async def test_caller_does_not_retry_request_without_answer(
    api: Api, config: ClusterConfig, eventually: Callable[..., Awaitable[Any]]
) -> None:
    """A retry by aiohttp would hide the lost request."""
    caller = Caller([config])
    async with caller.calling():
        await eventually(lambda: caller.answered > 1)
        api.silent = True
        await eventually(lambda: caller.errors)
        api.silent = False
    assert api.requests == len(api.connections) == caller.answered + len(caller.errors)
    with pytest.raises(DemoFailed, match="NotAnswered: ServerDisconnected"):
        caller.verify()
