"""Only requests of authenticated users count as use of a control plane."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from kplane.gateway.usage import Usage
from kplane.provider import Client
from tests.mcm.control_planes import controllers_token

from .conftest import Gateway

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("gateway"),
    pytest.mark.timeout(180),
]

_PROBES = ("/healthz", "/livez", "/readyz", "/version", "/api", "/")
_CHECKS_SECONDS = 2.5
"""Time for two readiness checks: Envoy checks each API server once a second (`envoy/readiness.py`)."""


async def test_usage_ignores_probes_and_unauthenticated_requests(
    gateway: Gateway, eventually: Callable[..., Any]
) -> None:
    usage, base = Usage(), f"https://{gateway.host}/clusters/one/control-plane"
    async with Client(gateway.tenants["one"].config) as direct:
        token = await controllers_token(direct, account=f"user-{uuid.uuid4().hex[:8]}")
    async with aiohttp.ClientSession() as session:

        async def ask(path: str, **headers: str) -> int:
            async with session.get(base + path, ssl=gateway.tls(), headers=headers) as answer:
                await answer.read()
                return answer.status

        usage.look(await gateway.plane.numbers())
        for path in _PROBES:
            assert await ask(path) == 401
            assert await ask(path, Authorization="Bearer x") == 401
            assert await ask(path, Authorization="Basic eDp4") == 401
        await asyncio.sleep(_CHECKS_SECONDS)
        assert usage.look(await gateway.plane.numbers()) == set()
        assert await ask("/healthz", Authorization=f"Bearer {token}") == 200
        used_keys = await eventually(lambda: _look(usage, gateway))
        assert used_keys == {"uid-one"}


async def _look(usage: Usage, gateway: Gateway) -> set[str]:
    return usage.look(await gateway.plane.numbers())
