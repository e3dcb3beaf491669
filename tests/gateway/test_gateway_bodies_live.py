"""The body limit applies to each request: with or without a Content-Length, and after a wake-up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from kplane.gateway.envoy import bodies
from kplane.gateway.routes import Limits, Route, Sleep

from .attacker import http1, http2, statuses
from .fleet import with_bootstrap_token
from .slow_server import PATH, SlowServer

pytestmark = pytest.mark.integration

_BOOTSTRAP_TOKEN = "abcdef.0123456789abcdef"
_TOKEN = f"Authorization: Bearer {_BOOTSTRAP_TOKEN}"
_LONG = b"x" * 5000


def _limited(slow: SlowServer) -> Route:
    return replace(slow.route, limits=Limits(set_by="ControlPlaneClass small", request_bytes=1000))


def _chunked(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def _http2(method: str, query: str, *, body: bytes, length: int | None = None) -> bytes:
    pseudo = [(":method", method), (":path", f"{PATH}?{query}"), (":scheme", "https"), (":authority", "gateway")]
    length_header = [("content-length", str(length))] if length is not None else []
    return http2(pseudo, [("authorization", f"Bearer {_BOOTSTRAP_TOKEN}"), *length_header], body=body)


@pytest.mark.parametrize(("certificate", "refused"), [(False, 401), (True, 413)], ids=["token", "certificate"])
async def test_deletion_without_length_beyond_limit_is_refused(
    slow: SlowServer, *, certificate: bool, refused: int
) -> None:
    """The API server verifies the token of a deletion, so the gateway tells a stranger nothing about the limit."""
    await slow.serve(_limited(slow))
    headers = () if certificate else (_TOKEN,)

    async def code(query: str, body: bytes | None) -> int:
        slow.may_answer(query)
        sent = http1(f"{PATH}?{query}", *headers, method="DELETE")
        if body is not None:
            chunked = "Transfer-Encoding: chunked"
            sent = http1(f"{PATH}?{query}", *headers, chunked, method="DELETE", body=_chunked(body))
        return statuses(await slow.exchange(sent, certificate=certificate))[0]

    assert await code("none", None) == 201
    assert await code("short", b"{}") == 201
    assert await code("long", _LONG) == refused


async def test_deletion_beyond_buffer_is_refused_without_its_limit(slow: SlowServer) -> None:
    await slow.serve(replace(slow.route, limits=Limits(set_by="ControlPlaneClass large", request_bytes=1 << 20)))
    chunked = "Transfer-Encoding: chunked"
    sent = http1(f"{PATH}?buffer", _TOKEN, chunked, method="DELETE", body=_chunked(b"x" * 300_000))
    answer = await slow.exchange(sent)
    assert statuses(answer) == [401]
    assert b"ControlPlaneClass" not in answer


async def test_deletion_with_incomplete_body_gets_408(slow: SlowServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "DELETION_SECONDS", 1)
    await slow.serve(_limited(slow))
    request = http1(f"{PATH}?never", _TOKEN, "Transfer-Encoding: chunked", method="DELETE", body=b"5\r\nab")
    assert statuses(await slow.exchange(request)) == [408]


async def test_http2_body_beyond_limit_is_refused(slow: SlowServer) -> None:
    await slow.serve(with_bootstrap_token(_limited(slow), _BOOTSTRAP_TOKEN))
    for query in ("short", "long", "post", "lie"):
        slow.may_answer(query)
    short = await slow.exchange(_http2("DELETE", "short", body=b"{}"), protocol="h2")
    long = await slow.exchange(_http2("DELETE", "long", body=_LONG), protocol="h2")
    post = await slow.exchange(_http2("POST", "post", body=_LONG), protocol="h2")
    lie = await slow.exchange(_http2("POST", "lie", body=_LONG, length=10), protocol="h2")
    # The server behind Envoy speaks only HTTP/1.1.
    assert b"it may have made the change" in short
    assert b"Unauthorized" in long
    assert b"this request has no Content-Length" in post
    assert b"requestBytes" in post
    assert b"answered" not in lie


@pytest.mark.parametrize("certificate", [False, True], ids=["token", "certificate"])
async def test_requests_waiting_for_wake_have_body_limit(
    slow: SlowServer, eventually: Callable[..., Any], *, certificate: bool
) -> None:
    limited = with_bootstrap_token(_limited(slow), _BOOTSTRAP_TOKEN)
    await slow.serve(replace(limited, asleep=Sleep(name="one", since=datetime.now(UTC))))
    headers = () if certificate else (_TOKEN,)
    sent = {}
    for query, body in (("short", b"{}"), ("long", _LONG)):
        slow.may_answer(query)
        request_headers = (*headers, f"Content-Length: {len(body)}")
        sent[query] = asyncio.create_task(slow.send(query, *request_headers, body=body, certificate=certificate))
    await eventually(lambda: slow.waker.waiting, lambda waiting: waiting == 2)
    await slow.serve(limited)
    assert statuses(await sent["short"]) == [201]
    assert statuses(await sent["long"]) == [413]
