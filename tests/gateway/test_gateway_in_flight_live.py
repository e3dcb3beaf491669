"""A hold is confirmed when no change is in flight, whatever became of Envoy's clusters meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kplane.gateway.routes import Hold, Limits

from .slow_server import SlowServer

pytestmark = pytest.mark.integration


async def test_changes_of_a_cluster_that_was_replaced_are_in_flight(
    slow: SlowServer, eventually: Callable[..., Any]
) -> None:
    sent = {
        query: asyncio.create_task(slow.send(query, *headers, method=method, certificate=not headers))
        for query, method, headers in (
            ("token", "POST", ("Authorization: Bearer t", "Content-Length: 0")),
            ("watch", "GET", ("Authorization: Bearer t",)),
            ("certificate", "DELETE", ()),
        )
    }
    await eventually(lambda: slow.answers, lambda found: len(found) == len(sent))
    # Its clusters are replaced, and are again what they were.
    await slow.serve(replace(slow.route, limits=Limits(requests_in_flight=300)))
    until = datetime.now(UTC) + timedelta(minutes=5)
    await slow.serve(replace(slow.route, held=Hold(until=until, asked="later")))
    for query in ("token", "certificate"):
        assert await slow.plane.quiet() == {}
        slow.answers[query].set()
        assert b" 201 " in await sent[query]
    assert await eventually(slow.plane.quiet) == {"uid-one": "later"}
    assert not sent["watch"].done()
    slow.answers["watch"].set()
    await sent["watch"]
