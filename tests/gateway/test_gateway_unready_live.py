"""Requests wait while an API server restarts. Before it has loaded RBAC roles, an API server returns 403."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import ssl
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import pytest

from kplane.gateway import holder, probes
from kplane.gateway.envoy import readiness
from kplane.gateway.routes import KeyPair
from kplane.pki.primitives import create_authority, issue_client
from kplane.provider import Client
from kplane.provider.aio.cancellation import end_tasks
from kplane.workloads import find_processes
from tests.mcm.control_planes import controllers_token

from .attacker import exchange, http1, http2, statuses
from .conftest import Gateway

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("gateway"),
    pytest.mark.timeout(240),
]

_NAMESPACES = "/clusters/one/control-plane/api/v1/namespaces"
_BODY = b'{"metadata":{"generateName":"x-"}}'
_CREATED = ("Content-Type: application/json", f"Content-Length: {len(_BODY)}")
_ADMINISTRATORS = 4
_ANSWERS = 20
_LOST_SECONDS = 0.2
"""Time in which an API server closes connections after SIGTERM. The gateway retries no request that was sent."""


class _Answer(NamedTuple):
    began: float
    code: int
    text: str


class _Administrator:
    """Sends requests in sequence through the gateway, and records each response. `change`: POST instead of GET."""

    def __init__(self, gateway: Gateway, token: str, *, change: bool) -> None:
        self._gateway = gateway
        self._change = change
        self._headers = {"Authorization": f"Bearer {token}"}
        self.answers: list[_Answer] = []

    async def ask(self) -> None:
        timeout, url = aiohttp.ClientTimeout(total=120), f"https://{self._gateway.host}{_NAMESPACES}"
        body = {"metadata": {"generateName": "x-"}}
        options: Any = {"ssl": self._gateway.tls()}
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session:
            while True:
                began = time.monotonic()
                request = (
                    session.post(f"{url}?dryRun=All", json=body, **options)
                    if self._change
                    else session.get(url, **options)
                )
                async with request as answer:
                    self.answers.append(_Answer(began, answer.status, await answer.text()))

    def good_since(self, moment: float) -> int:
        return sum(answer.began > moment and answer.code in {200, 201} for answer in self.answers)


async def test_refused_front_proxy_certificate_delays_no_request_with_token(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "_MAX_RETRIES", 4)
    token = await _administrators_token(gateway)
    route = gateway.route("one")
    assert route.upstream is not None
    assert route.upstream.front_proxy is not None
    other_pair = issue_client(create_authority("another"), user="front-proxy-client")
    front_proxy = dataclasses.replace(
        route.upstream.front_proxy, certificate=KeyPair(other_pair.certificate, other_pair.key)
    )
    upstream = dataclasses.replace(route.upstream, front_proxy=front_proxy)
    assert await gateway.serve(dataclasses.replace(route, upstream=upstream)) == {}
    for method, code in (("GET", 200), ("POST", 201)):
        headers = (f"Authorization: Bearer {token}", *_CREATED)
        sent = http1(f"{_NAMESPACES}?dryRun=All", *headers, method=method, body=_BODY)
        assert statuses(await exchange(gateway.serving.port, sent, ca=gateway.ca)) == [code]
    user = issue_client(gateway.tenants["one"].authorities.client, user="jane")
    certificate = tmp_path / "jane.pem"
    certificate.write_bytes(user.certificate + user.key)
    sent = http1(_NAMESPACES)
    assert statuses(await exchange(gateway.serving.port, sent, ca=gateway.ca, certificate=certificate)) == [503]


async def _administrators_token(gateway: Gateway) -> str:
    async with Client(gateway.tenants["one"].config) as direct:
        return await controllers_token(direct, account=f"admin-{uuid.uuid4().hex[:8]}")


async def _listens(server: str) -> bool:
    address = urlsplit(server)
    try:
        _, writer = await asyncio.open_connection(address.hostname, address.port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


async def test_connections_to_host_name_wait_while_api_server_restarts(
    gateway: Gateway, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine takes longer to start an API server than clients wait.
    monkeypatch.setattr(holder, "_READY_SECONDS", 75.0)
    monkeypatch.setattr(probes, "_DENIED_SECONDS", 75.0)
    monkeypatch.setattr(readiness, "_UNUSED_INTERVAL", readiness._INTERVAL)
    tenant = gateway.tenants["one"]
    assert await gateway.serve(gateway.host_route("one")) == {}
    tls = ssl.create_default_context(cadata=tenant.authorities.serving.certificate.decode())
    headers = {"Authorization": f"Bearer {await _administrators_token(gateway)}", "Host": "one.example.org"}
    codes: list[int | str] = []

    async def ask() -> int | str:
        """Ask over a new connection. Returns the code, or the error of a lost connection."""
        options: Any = {"ssl": tls, "server_hostname": "one.example.org"}
        async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=120)) as session:
            try:
                async with session.get(f"https://{gateway.host}/api/v1/namespaces", **options) as answer:
                    return answer.status
            except aiohttp.ClientError as error:
                return str(error)

    async def keep_asking() -> None:
        while True:
            codes.append(await ask())

    assert await ask() == 200
    (api_server,) = find_processes(tenant.directory)
    os.kill(api_server, signal.SIGKILL)
    # The API server may reset connections of this moment. Its client sees that directly too.
    await eventually(lambda: _listens(tenant.server), lambda listens: not listens)
    tasks = [asyncio.create_task(keep_asking()) for _ in range(_ADMINISTRATORS)]
    try:
        await eventually(lambda: len(codes), lambda count: count >= _ADMINISTRATORS * _ANSWERS, timeout=120.0)
    finally:
        await end_tasks(tasks)
    assert set(codes) == {200}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
async def test_requests_wait_while_api_server_restarts(
    gateway: Gateway, number: signal.Signals, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine takes longer to start an API server than clients wait.
    monkeypatch.setattr(readiness, "_MAX_RETRIES", 150)
    # Envoy notices the first connection of a cluster at the next check.
    monkeypatch.setattr(readiness, "_UNUSED_INTERVAL", readiness._INTERVAL)
    tenant = gateway.tenants["one"]
    assert await gateway.serve(gateway.route("one")) == {}
    token = await _administrators_token(gateway)
    administrators = [_Administrator(gateway, token, change=number % 2 == 1) for number in range(_ADMINISTRATORS)]
    tasks = [asyncio.create_task(administrator.ask()) for administrator in administrators]

    async def served_since(moment: float) -> None:
        await eventually(
            lambda: min(administrator.good_since(moment) for administrator in administrators),
            lambda count: count >= _ANSWERS,
            timeout=120.0,
        )

    await served_since(0.0)
    (api_server,) = find_processes(tenant.directory)
    ended = time.monotonic()
    os.kill(api_server, number)
    pseudo = {":method": "GET", ":scheme": "https", ":authority": "localhost", ":path": f"{_NAMESPACES}/kube-system"}
    sent = http2(pseudo.items(), [("authorization", f"Bearer {token}")])
    by_http2 = exchange(gateway.serving.port, sent, ca=gateway.ca, protocol="h2", seconds=90.0)
    assert b'"kubernetes.io/metadata.name":"kube-system"' in await by_http2
    await served_since(ended)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    answers = [answer for administrator in administrators for answer in administrator.answers]
    lost = [answer for answer in answers if answer.code in {503, 504} and answer.began < ended + _LOST_SECONDS]
    assert len(lost) <= 2 * _ADMINISTRATORS
    assert all("the API server of this control plane ended" in answer.text for answer in lost)
    assert {answer.code for answer in answers if answer not in lost} == {200, 201}
