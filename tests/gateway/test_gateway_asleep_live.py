"""A busy control plane falls asleep and wakes again behind a real Envoy, and no request gets 503."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest

from kplane.gateway.routes import Sleep
from kplane.gateway.tokens import SERVICE_ACCOUNT_ISSUER
from kplane.pki.signatures import sign_claims

from .fleet import SERVING_CA, TOKEN_KEY
from .slow_server import PATH, SlowServer

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

_ROUNDS = 50
_CLIENTS = 2
"""Number of clients with a token, and with a certificate."""


def _token() -> str:
    claims = {
        "iss": SERVICE_ACCOUNT_ISSUER,
        "aud": [SERVICE_ACCOUNT_ISSUER],
        "exp": int((datetime.now(UTC) + timedelta(hours=1)).timestamp()),
        "sub": "system:serviceaccount:default:robot",
        "kubernetes.io": {"namespace": "default", "serviceaccount": {"name": "robot", "uid": "1"}},
    }
    return sign_claims(claims, key=TOKEN_KEY)


@dataclass
class Load:
    """Requests of all clients. Each client sends its next request after the response to the last one."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Number of responses by credential and status code."""
    refusals: list[str] = field(default_factory=list)
    """Bodies of responses that are not of the API server."""

    async def send(self, session: aiohttp.ClientSession, url: str, *, credential: str) -> None:
        while True:
            async with session.get(url) as answer:
                text = await answer.text()
                self.answers[credential, answer.status] += 1
                if answer.status != 201:
                    self.refusals.append(text)

    @property
    def slowest(self) -> int:
        """Number of responses by the credential that has fewer."""
        return min(self.answers[credential, 201] for credential in ("token", "certificate"))


@contextlib.asynccontextmanager
async def _load(slow: SlowServer) -> AsyncIterator[Load]:
    """Send requests by token and by certificate while the context is open. Clients keep their connections."""
    slow.may_answer("load")
    load, url = Load(), f"https://localhost:{slow.serving.port}{PATH}?load"
    by_token = ssl.create_default_context(cadata=SERVING_CA.certificate.decode())
    by_certificate = ssl.create_default_context(cadata=SERVING_CA.certificate.decode())
    by_certificate.load_cert_chain(slow.directory / "user.pem")
    async with (
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=by_token), headers={"Authorization": f"Bearer {_token()}"}
        ) as robot,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=by_certificate)) as jane,
    ):
        tasks = [
            asyncio.create_task(load.send(session, url, credential=credential), name=f"client by {credential}")
            for credential, session in (("token", robot), ("certificate", jane))
            for _ in range(_CLIENTS)
        ]
        try:
            yield load
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def test_busy_control_plane_falls_asleep_without_503(slow: SlowServer, eventually: Callable[..., Any]) -> None:
    """Envoy loses the clusters of the control plane while requests use its table of routes."""
    async with _load(slow) as load:
        for _ in range(_ROUNDS):
            before = load.slowest
            await eventually(lambda: load.slowest, lambda slowest, before=before: slowest > before)
            await slow.serve(replace(slow.route, asleep=Sleep(name="one", since=datetime.now(UTC))))
            await eventually(lambda: slow.waker.waiting, lambda waiting: waiting == 2 * _CLIENTS)
            await slow.serve(slow.route)
            assert load.refusals == []
        await eventually(lambda: slow.waker.waiting, lambda waiting: waiting == 0)
    assert {code for _, code in load.answers} == {201}
