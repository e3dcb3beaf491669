"""Tokens of a tenant use no memory and no questions that the Lua script of Envoy reserves for other tenants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from kplane.gateway.envoy import credentials
from kplane.gateway.envoy.messages import FILTERS, Message, typed
from kplane.gateway.envoy.names import AUTHORIZER, CLIENT_HEADER

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

_TENANTS = ("one", "two", "three")


def _token(number: int) -> str:
    """Return a text of the form of a JSON Web Token."""
    return f"head.claims.{number:0100}"


@dataclass
class _Script:
    """Envoy with only the script. The authorizer accepts each token."""

    url: str
    session: aiohttp.ClientSession
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Tenant and token of each question."""

    async def answer(self, request: web.BaseRequest) -> web.Response:
        self.asked.append((request.path.split("/")[2], request.headers["authorization"].removeprefix("Bearer ")))
        return web.Response(status=204)

    async def send(self, tenant: str, numbers: Iterable[int], *, client: str | None = None) -> list[int]:
        """Send a request with each token. Returns the tokens that the script sent to the authorizer."""
        before = len(self.asked)
        for number in numbers:
            address = client if client is not None else f"10.0.0.{number % 256}"
            headers = {"Authorization": f"Bearer {_token(number)}", CLIENT_HEADER: address}
            async with self.session.get(f"{self.url}/clusters/{tenant}/control-plane/api", headers=headers) as answer:
                assert answer.status == 200
        return [int(token.rpartition(".")[2]) for _, token in self.asked[before:]]


def _bootstrap(*, port: int, authorizer: int) -> Message:
    def address(number: int) -> Message:
        return {"socket_address": {"address": "127.0.0.1", "port_value": number}}

    routes = [
        {
            "match": {"prefix": f"/clusters/{tenant}/"},
            "direct_response": {"status": 200},
            "typed_per_filter_config": credentials.with_credentials(tenant),
        }
        for tenant in _TENANTS
    ]
    router = {"name": "router", "typed_config": typed(f"{FILTERS}.http.router.v3.Router")}
    manager = typed(
        f"{FILTERS}.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="test",
        route_config={"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        http_filters=[credentials.credentials(), router],
    )
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    upstream = {
        "name": AUTHORIZER,
        "type": "STATIC",
        "load_assignment": {
            "cluster_name": AUTHORIZER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(authorizer)}}]}],
        },
    }
    listener = {"name": "test", "address": address(port), "filter_chains": [chain]}
    return {"static_resources": {"listeners": [listener], "clusters": [upstream]}}


@pytest.fixture
async def script(
    request: pytest.FixtureRequest,
    envoy: Path,
    tmp_path: Path,
    hold_port: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., Any],
) -> AsyncIterator[_Script]:
    """Run the script with the limits of the parameter."""
    monkeypatch.setattr(credentials, "_LIMITS", {**credentials._LIMITS, **request.param})
    credentials._script.cache_clear()
    port, authorizer = hold_port(), hold_port()
    configuration = tmp_path / "envoy.json"
    configuration.write_bytes(orjson.dumps(_bootstrap(port=port, authorizer=authorizer)))
    credentials._script.cache_clear()
    args = ("--config-path", str(configuration), "--disable-hot-restart", "--concurrency", "1", "--log-level", "error")
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        script = _Script(f"http://127.0.0.1:{port}", session)
        runner = web.ServerRunner(web.Server(script.answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", authorizer, reuse_address=True).start()
        process = await asyncio.create_subprocess_exec(str(envoy), *args)
        try:

            async def status() -> int:
                async with session.get(script.url) as answer:
                    return answer.status

            await eventually(status, lambda code: code == 404)
            yield script
        finally:
            process.kill()
            await process.wait()
            await runner.cleanup()


@pytest.mark.parametrize("script", [{"questions": 12}], indirect=True)
async def test_flood_of_new_tokens_to_one_tenant_leaves_questions_to_others(script: _Script) -> None:
    assert await script.send("one", range(40))
    assert await script.send("two", [100]) == [100]


@pytest.mark.parametrize("script", [{"questions": 16}], indirect=True)
async def test_flood_from_one_ipv6_network_leaves_questions_to_others(script: _Script) -> None:
    for number in range(1, 40):
        await script.send("one", [number], client=f"2001:db8::{number:x}:{number:x}")
    assert await script.send("one", [100], client="2001:db8:0:1::1") == [100]
    assert await script.send("one", [101], client="10.0.0.1") == [101]


@pytest.mark.parametrize("script", [{"questions": 4000, "tenant_bytes": 1000, "all_bytes": 8000}], indirect=True)
async def test_many_tokens_of_one_tenant_evict_no_token_of_others(script: _Script) -> None:
    assert await script.send("two", [1]) == [1]
    assert await script.send("one", range(300)) == list(range(300))
    assert await script.send("two", [1]) == []
