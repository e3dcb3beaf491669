"""A hold is confirmed when no change is in flight, also after Envoy has replaced its clusters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kplane.gateway.envoy import readiness, routing
from kplane.gateway.routes import Hold, Limits

from .attacker import http1, statuses
from .slow_server import PATH, SlowServer

pytestmark = pytest.mark.integration


async def test_changes_of_replaced_cluster_stay_in_flight(slow: SlowServer, eventually: Callable[..., Any]) -> None:
    sent = {
        query: asyncio.create_task(slow.send(query, *headers, method=method, certificate=not headers))
        for query, method, headers in (
            ("token", "POST", ("Authorization: Bearer t", "Content-Length: 0")),
            ("watch", "GET", ("Authorization: Bearer t",)),
            ("certificate", "DELETE", ()),
        )
    }
    await eventually(lambda: slow.answers, lambda found: len(found) == len(sent))
    # Envoy replaces the clusters, and then restores the former clusters.
    await slow.serve(replace(slow.route, limits=Limits(requests_in_flight=300)))
    until = datetime.now(UTC) + timedelta(minutes=5)
    await slow.serve(replace(slow.route, held=Hold(until=until, asked="later")))

    async def named() -> list[str]:
        assert await slow.plane.quiet() == {}
        in_flight = slow.plane.in_flight["uid-one"]
        assert in_flight["count"] == 2
        return [f"{change['method']} {change['path']} {change['client']}" for change in in_flight["oldest"]]

    path = "/api/v1/namespaces/default/configmaps 127.0.0.1"
    await eventually(named, lambda found: sorted(found) == [f"DELETE {path}", f"POST {path}"])
    for query in ("token", "certificate"):
        assert await slow.plane.quiet() == {}
        slow.answers[query].set()
        assert b" 201 " in await sent[query]
    assert await eventually(slow.plane.quiet) == {"uid-one": "later"}
    assert slow.plane.in_flight == {}
    assert not sent["watch"].done()
    slow.answers["watch"].set()
    await sent["watch"]


async def test_silent_request_gets_408_and_active_requests_continue(
    slow: SlowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "WAITING_IDLE_SECONDS", 3)
    await slow.serve(replace(slow.route, limits=Limits(request_idle_seconds=2)))
    token = "Authorization: Bearer t"
    watch = asyncio.create_task(slow.send("watch", token, method="GET"))
    slow.may_answer("upload")

    async def upload() -> AsyncIterator[bytes]:
        yield http1(f"{PATH}?upload", token, "Content-Length: 10", method="POST")
        for _ in range(10):
            await asyncio.sleep(0.5)
            yield b"x"

    uploading = asyncio.create_task(slow.exchange(upload()))
    request = http1(f"{PATH}?watch=true", token, "Content-Length: 1000")
    watch_with_body = asyncio.create_task(slow.exchange(request))
    requests = [
        http1(f"{PATH}?silent", *headers, body, method=method)
        for method in ("POST", "GET")
        for headers in ((), (token,))
        for body in ("Content-Length: 1000", "Transfer-Encoding: chunked")
    ]
    answers = await asyncio.gather(*(slow.exchange(sent, certificate=token.encode() not in sent) for sent in requests))
    assert [statuses(answer) for answer in answers] == [[408]] * len(requests)
    assert statuses(await uploading) == [201]
    assert not watch.done()
    assert not watch_with_body.done()
    watch_with_body.cancel()
    slow.may_answer("watch")
    assert statuses(await watch) == [201]


async def test_change_that_was_sent_gets_504_without_retry_after(
    slow: SlowServer, eventually: Callable[..., Any]
) -> None:
    sent = {
        method: asyncio.create_task(slow.send(method, "Authorization: Bearer t", method=method))
        for method in ("DELETE", "GET")
    }
    service = f"{PATH.removesuffix('configmaps')}services/web/proxy/reset"
    sent["proxied"] = asyncio.create_task(slow.exchange(http1(f"{service}?proxied", "Authorization: Bearer t")))
    await eventually(lambda: slow.answers, lambda found: len(found) == len(sent))
    for method in sent:
        slow.lost.add(method)
        slow.may_answer(method)
    read_answer = await sent["GET"]
    # A program behind the API server may make changes also for a GET.
    for change_answer in (await sent["DELETE"], await sent["proxied"]):
        assert statuses(change_answer) == [504]
        assert b"retry-after" not in change_answer.lower()
        assert json.loads(change_answer.partition(b"\r\n\r\n")[2])["reason"] == "Timeout"
    # A read may be repeated, as client-go does after a lost connection of its own.
    assert statuses(read_answer) == [503]
    assert b"retry-after: 1" in read_answer.lower()


async def test_request_that_was_not_sent_gets_503_with_retry_after(
    slow: SlowServer, hold_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "_MAX_RETRIES", 2)
    assert slow.route.upstream is not None
    await slow.serve(replace(slow.route, upstream=replace(slow.route.upstream, port=hold_port())))
    answer = await slow.send("refused", "Authorization: Bearer t", "Content-Length: 0")
    assert statuses(answer) == [503]
    assert b"retry-after: 1" in answer.lower()
