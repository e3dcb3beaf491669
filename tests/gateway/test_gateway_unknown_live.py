"""A flood of unknown tokens takes no limits of an awake control plane from its users."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kplane.gateway.envoy import clusters, routing
from kplane.gateway.routes import Limits, Route
from kplane.gateway.tokens import TokenTrust
from kplane.provider import Client
from kplane.provider.client.resources import SERVICE_ACCOUNTS
from tests.mcm.control_planes import controllers_token

from .attacker import exchange, http1, statuses
from .conftest import Gateway
from .slow_server import SlowServer

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("gateway"), pytest.mark.timeout(300)]

PATH = "/clusters/one/control-plane/api/v1/namespaces/default"
FLOOD = 300
"""Exceeds the token bucket of a client address."""


def _limited(gateway: Gateway, **limits: int) -> Route:
    return dataclasses.replace(gateway.route("one"), limits=Limits(set_by="ControlPlaneClass small", **limits))


async def _account(gateway: Gateway, name: str) -> tuple[str, str]:
    """Create a ServiceAccount. Returns its name and a token."""
    account = f"{name}-{gateway.serving.port}"
    async with Client(gateway.tenants["one"].config) as direct:
        return account, await controllers_token(direct, account=account)


async def _ask(gateway: Gateway, token: str, *, method: str = "GET", source: str | None = None) -> bytes:
    sent = http1(PATH, f"Authorization: Bearer {token}", "Content-Length: 0", method=method)
    return await exchange(gateway.serving.port, sent, ca=gateway.ca, source=source, seconds=120)


def _made_up(token: str) -> Iterator[str]:
    """Yield invalid tokens: arbitrary text, unknown bootstrap tokens, and a valid token with changed signatures."""
    head, _, signature = token.rpartition(".")
    for number in range(FLOOD):
        yield (f"junk{number}", f"abcdef.{number:016}", f"{head}.{number:08}{signature[8:]}")[number % 3]


async def _flood(gateway: Gateway, token: str, *, source: str | None = None) -> list[int]:
    methods = ("GET", "POST", "DELETE")
    requests = [
        _ask(gateway, invalid_token, method=methods[index % 3], source=source)
        for index, invalid_token in enumerate(_made_up(token))
    ]
    return [statuses(answer)[0] for answer in await asyncio.gather(*requests)]


@pytest.mark.parametrize("limits", [{"requests_per_second": 5}, {"requests_in_flight": 1}])
async def test_flood_of_unknown_tokens_takes_no_limit_of_class(gateway: Gateway, limits: dict[str, int]) -> None:
    _, token = await _account(gateway, "good")
    assert await gateway.serve(_limited(gateway, **limits)) == {}
    assert statuses(await _ask(gateway, token)) == [200]
    flood = asyncio.create_task(_flood(gateway, token))
    answers = []
    while not flood.done():
        answers += statuses(await _ask(gateway, token))
        await asyncio.wait([flood], timeout=0.25)
    assert set(answers) == {200}
    assert set(await flood) == {401, 429}


async def test_new_token_passes_during_flood_of_other_address(gateway: Gateway) -> None:
    tokens = [(await _account(gateway, f"new-{number}"))[1] for number in range(3)]
    assert await gateway.serve(_limited(gateway, requests_per_second=5)) == {}
    flood = asyncio.create_task(_flood(gateway, tokens[0], source="127.0.0.2"))
    assert [statuses(await _ask(gateway, token)) for token in tokens] == [[200]] * 3
    await flood


async def test_unknown_token_beyond_rate_gets_429_with_reason(gateway: Gateway) -> None:
    assert await gateway.serve(_limited(gateway, requests_per_second=5)) == {}
    answers = await asyncio.gather(*(_ask(gateway, f"junk{number}") for number in range(FLOOD)))
    codes = [statuses(answer)[0] for answer in answers]
    assert set(codes) == {401, 429}
    head, _, body = answers[codes.index(429)].partition(b"\r\n\r\n")
    assert b"retry-after: 1" in head.lower()
    assert "credentials that the gateway cannot verify" in json.loads(body)["message"]


async def test_token_counts_for_class_after_api_server_accepts_it(gateway: Gateway) -> None:
    _, token = await _account(gateway, "foreign")
    route = _limited(gateway, requests_per_second=1)
    assert route.upstream is not None
    # The gateway cannot verify the token, like tokens of an authentication webhook.
    unverifiable_route = dataclasses.replace(route, upstream=dataclasses.replace(route.upstream, trust=TokenTrust()))
    assert await gateway.serve(unverifiable_route) == {}
    assert statuses(await _ask(gateway, token)) == [200]
    answers = await asyncio.gather(*(_ask(gateway, token) for _ in range(10)))
    assert {statuses(answer)[0] for answer in answers} == {200, 429}
    assert any(b"limits.requestsPerSecond" in answer for answer in answers)


async def _watch(gateway: Gateway, token: str, *, path: str = f"{PATH.rpartition('/')[0]}?watch=true") -> float:
    """Watch namespaces until the gateway or the API server ends the watch. Returns its duration in seconds."""
    began = time.monotonic()
    sent = http1(path, f"Authorization: Bearer {token}")
    answer = await exchange(gateway.serving.port, sent, ca=gateway.ca, to_the_end=True, seconds=120)
    assert statuses(answer) == [200]
    return time.monotonic() - began


async def test_watches_with_unverified_tokens_release_their_slots(
    gateway: Gateway, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "_MAX_UNKNOWN", 2)
    monkeypatch.setattr(routing, "_UNVERIFIED", {"max_stream_duration": {"max_stream_duration": "5s"}})
    tokens = [(await _account(gateway, f"watches-{number}"))[1] for number in range(3)]
    route = gateway.route("one")
    assert route.upstream is not None
    unverifiable_route = dataclasses.replace(route, upstream=dataclasses.replace(route.upstream, trust=TokenTrust()))
    assert await gateway.serve(unverifiable_route) == {}
    watches = [asyncio.create_task(_watch(gateway, token)) for token in tokens[:2]]
    await eventually(gateway.plane.numbers, lambda found: found["cluster.uid-one.upstream_rq_active"] == 2)
    assert statuses(await _ask(gateway, tokens[2])) == [429]
    await eventually(lambda: _ask(gateway, tokens[2]), lambda answer: statuses(answer) == [200])
    assert max(await asyncio.gather(*watches)) < 30
    # The API server has accepted the tokens, so a watch lasts for the timeout of its client.
    assert await _watch(gateway, tokens[0], path=f"{PATH.rpartition('/')[0]}?watch=true&timeoutSeconds=10") >= 9


async def test_stream_to_pod_with_unverified_token_is_not_ended(
    slow: SlowServer, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "_UNVERIFIED", {"max_stream_duration": {"max_stream_duration": "2s"}})
    await slow.serve(dataclasses.replace(slow.route, limits=Limits(requests_in_flight=300)))
    pods = "/clusters/one/control-plane/api/v1/namespaces/default/pods"
    log, watch = (
        asyncio.create_task(slow.exchange(http1(path, "Authorization: Bearer made-up")))
        for path in (f"{pods}/web/log?follow=true", f"{pods}?w%61tch=true")
    )
    await eventually(lambda: slow.answers, lambda received: len(received) == 2)
    assert statuses(await watch) == [504]
    assert not log.done()
    slow.may_answer("follow=true")
    assert statuses(await log) == [201]


async def test_anonymous_answer_verifies_no_token_of_protocol_header(gateway: Gateway) -> None:
    _, token = await _account(gateway, "user")
    assert await gateway.serve(_limited(gateway, requests_per_second=5)) == {}
    # Without a WebSocket upgrade, an API server ignores the header. Anonymous users may read /livez.
    sent = http1(
        "/clusters/one/control-plane/livez", "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.Zm9v"
    )
    answers = [await exchange(gateway.serving.port, sent, ca=gateway.ca) for _ in range(20)]
    assert not any(b"limits.requestsPerSecond" in answer for answer in answers)
    assert statuses(await _ask(gateway, token)) == [200]


async def test_token_of_deleted_account_takes_no_limit_of_class(
    gateway: Gateway, eventually: Callable[..., Any]
) -> None:
    account, token = await _account(gateway, "gone")
    _, other_token = await _account(gateway, "stays")
    assert await gateway.serve(_limited(gateway, requests_per_second=5)) == {}
    assert statuses(await _ask(gateway, token)) == [200]
    async with Client(gateway.tenants["one"].config) as direct:
        await direct.delete(SERVICE_ACCOUNTS, account, namespace="kube-system")
    # The API server caches the token for a while.
    await eventually(lambda: _ask(gateway, token), lambda answer: statuses(answer) == [401])
    answers = await asyncio.gather(*(_ask(gateway, token) for _ in range(60)))
    assert {statuses(answer)[0] for answer in answers} <= {401, 429}
    assert not any(b"limits.requestsPerSecond" in answer for answer in answers)
    assert statuses(await _ask(gateway, other_token)) == [200]
