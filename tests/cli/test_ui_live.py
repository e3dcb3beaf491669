"""The page of `kplane ui` over a real management cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest

from kplane.cli.ui.server import serve
from kplane.client import ControlPlanes
from kplane.embedded.handle import Handle
from kplane.provider import ClusterConfig

pytestmark = pytest.mark.integration


@pytest.fixture
async def control_planes(management_cluster: Handle) -> AsyncIterator[ControlPlanes]:
    async with ControlPlanes.connect(ClusterConfig.load(management_cluster.admin_kubeconfig)) as connected:
        yield connected


@pytest.fixture
async def address(control_planes: ControlPlanes) -> AsyncIterator[str]:
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(control_planes, port=0, ready=listening.set_result))
    completed, _ = await asyncio.wait([serving, listening], return_when=asyncio.FIRST_COMPLETED)
    if serving in completed:
        serving.result()
    yield listening.result()
    serving.cancel()
    await asyncio.wait([serving])


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_page_follows_created_and_deleted_control_planes(
    control_planes: ControlPlanes, address: str, http: aiohttp.ClientSession, eventually: Callable[..., Awaitable[Any]]
) -> None:
    async def phases() -> dict[str, str]:
        async with http.get(f"{address}fleet") as answer:
            return {row["name"]: row["phase"] for row in (await answer.json())["controlPlanes"]}

    await control_planes.create("pictured", spec={"virtual": {"start": "OnDemand"}, "deletionPolicy": "Destroy"})
    try:
        await eventually(phases, lambda found: found.get("pictured") == "Hibernated")
    finally:
        await control_planes.delete("pictured", wait=True)
    await eventually(phases, lambda found: "pictured" not in found)


async def test_page_serves_its_parts_with_content_security_policy(address: str, http: aiohttp.ClientSession) -> None:
    for part, kind in (("", "text/html"), ("page.css", "text/css"), ("page.js", "text/javascript")):
        async with http.get(f"{address}{part}") as answer:
            assert (answer.status, answer.content_type) == (200, kind)
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    async with http.get(f"{address}fleet") as answer:
        assert json.loads(await answer.text())["server"].startswith("https://")


async def test_page_shows_time_of_last_api_server_answer(
    address: str, http: aiohttp.ClientSession, eventually: Callable[..., Awaitable[Any]]
) -> None:
    async def looked_at() -> str | None:
        async with http.get(f"{address}fleet") as answer:
            time: str | None = (await answer.json())["lookedAt"]
            return time

    first = await eventually(looked_at, lambda found: found is not None)
    assert datetime.fromisoformat(first) <= datetime.now(UTC)
    assert await looked_at() == first  # the time of the answer, not of the request


async def test_requests_without_key_or_for_writes_are_refused(address: str, http: aiohttp.ClientSession) -> None:
    origin = address.split("/", 3)[:3]
    for path in ("", "fleet", "page.js", f"{'A' * 32}/fleet"):
        async with http.get("/".join([*origin, path])) as answer:
            assert answer.status == 404
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        async with http.request(method, f"{address}fleet") as answer:
            assert answer.status == 405
