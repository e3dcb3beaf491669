"""Only requests of users that the API server knows are use of a control plane."""

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
"""Envoy asks each API server for its readiness once a second (`envoy/readiness.py`)."""


async def test_probes_and_unknown_users_are_no_use(gateway: Gateway, eventually: Callable[..., Any]) -> None:
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
        used = await eventually(lambda: _look(usage, gateway))
        assert used == {"uid-one"}


async def _look(usage: Usage, gateway: Gateway) -> set[str]:
    return usage.look(await gateway.plane.numbers())
