"""Probes of API servers at host names."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kplane.gateway import probes as probes_module
from kplane.gateway.probes import Probes
from kplane.gateway.routes import Upstream
from kplane.pki.primitives import create_authority, issue_serving


class Server:
    """API server that answers `/readyz` with a status code, as soon as it may answer."""

    def __init__(self) -> None:
        self.status = 200
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.upstream = Upstream.behind("https://127.0.0.1:1")

    async def answer(self, request: web.BaseRequest) -> web.Response:
        assert request.path == "/readyz"
        assert "Authorization" not in request.headers
        self.asked += 1
        await self.answers.wait()
        return web.Response(status=self.status)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(probes_module, "_PAUSE_SECONDS", 0.0)
    pair = issue_serving(create_authority("control planes"), common_name="api", hosts=["127.0.0.1"])
    certificate = tmp_path / "api.pem"
    certificate.write_bytes(pair.certificate + pair.key)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    server = Server()
    runner = web.ServerRunner(web.Server(server.answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    host, port = runner.addresses[0]
    server.upstream = Upstream.behind(f"https://{host}:{port}")
    yield server
    server.answers.set()
    await runner.cleanup()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def probes(clock: Clock) -> AsyncIterator[Probes]:
    probes = Probes(clock=clock)
    yield probes
    await probes.aclose()


async def test_api_server_is_ready_after_200_or_401(server: Server, probes: Probes) -> None:
    for status, is_ready in ((200, True), (401, True), (403, False), (500, False), (302, False)):
        server.status = status
        assert await probes.is_ready(server.upstream) is is_ready, status


async def test_api_server_without_answer_is_not_ready(
    server: Server, probes: Probes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not await probes.is_ready(Upstream.behind("https://127.0.0.1:1"))
    assert not await probes.is_ready(Upstream.behind("https://[::1]:1"))
    monkeypatch.setattr(probes_module, "_TIMEOUT", 0.05)
    server.answers.clear()
    assert not await probes.is_ready(server.upstream)


async def test_service_name_is_ready_without_probe(probes: Probes) -> None:
    assert await probes.is_ready(Upstream.behind("https://one.acme.svc:443"))


async def test_api_server_that_denies_anonymous_clients_is_ready_after_10_s(
    server: Server, probes: Probes, clock: Clock
) -> None:
    """The tenant may remove the role binding of anonymous clients. They must not lose their access by that."""
    server.status = 403
    assert not await probes.is_ready(server.upstream)
    clock.now = 9.9
    assert not await probes.is_ready(server.upstream)
    clock.now = 10.0
    assert await probes.is_ready(server.upstream)
    server.status = 500
    assert not await probes.is_ready(server.upstream)
    server.status = 403
    assert not await probes.is_ready(server.upstream)


async def test_connections_share_a_probe(server: Server, probes: Probes, eventually: Callable[..., Any]) -> None:
    server.answers.clear()
    waiting = [asyncio.create_task(probes.is_ready(server.upstream)) for _ in range(10)]
    await eventually(lambda: server.asked)
    waiting.pop(0).cancel()
    server.answers.set()
    assert await asyncio.gather(*waiting) == [True] * 9
    assert server.asked == 1
