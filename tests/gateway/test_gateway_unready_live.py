"""While an API server starts again, requests wait. It would answer 403 before it knows the roles of its users."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import aiohttp
import pytest

from kplane.provider import Client
from kplane.workloads import find_processes
from tests.mcm.control_planes import controllers_token

from .conftest import Gateway

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("gateway"),
    pytest.mark.timeout(240),
]

_NAMESPACES = "/clusters/one/control-plane/api/v1/namespaces"
_ADMINISTRATORS = 4
_ANSWERS = 20
_LOST_SECONDS = 0.2
"""An API server that gets SIGTERM closes connections in this time. The gateway repeats no request that it sent."""


class _Answer(NamedTuple):
    began: float
    code: int
    text: str


class _Administrator:
    """Sends one request after another through the gateway, and notes each answer."""

    def __init__(self, gateway: Gateway, token: str) -> None:
        self._gateway = gateway
        self._headers = {"Authorization": f"Bearer {token}"}
        self.answers: list[_Answer] = []

    async def ask(self) -> None:
        timeout, url = aiohttp.ClientTimeout(total=90), f"https://{self._gateway.host}{_NAMESPACES}"
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session:
            while True:
                began = time.monotonic()
                async with session.get(url, ssl=self._gateway.tls()) as answer:
                    self.answers.append(_Answer(began, answer.status, await answer.text()))

    def good_since(self, moment: float) -> int:
        return sum(answer.began > moment and answer.code == 200 for answer in self.answers)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
async def test_administrator_waits_while_the_api_server_starts_again(
    gateway: Gateway, number: signal.Signals, eventually: Callable[..., Any]
) -> None:
    tenant = gateway.tenants["one"]
    async with Client(tenant.config) as direct:
        token = await controllers_token(direct, account=f"admin-{uuid.uuid4().hex[:8]}")
    administrators = [_Administrator(gateway, token) for _ in range(_ADMINISTRATORS)]
    asking = [asyncio.create_task(each.ask()) for each in administrators]

    async def served_since(moment: float) -> None:
        await eventually(
            lambda: min(each.good_since(moment) for each in administrators),
            lambda count: count >= _ANSWERS,
            timeout=90.0,
        )

    await served_since(0.0)
    (api_server,) = find_processes(tenant.directory)
    ended = time.monotonic()
    os.kill(api_server, number)
    await served_since(ended)
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)
    answers = [answer for each in administrators for answer in each.answers]
    lost = [answer for answer in answers if answer.code == 503 and answer.began < ended + _LOST_SECONDS]
    assert all("ended; retry" in answer.text for answer in lost)
    assert {answer.code for answer in answers if answer not in lost} == {200}
