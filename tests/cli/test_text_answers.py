"""Answers that are text: deadlines, and how long a line may be."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from kplane.client.text import read_text, stream_lines
from kplane.provider import Client, Unreachable

from .api_server import serving

MIB = 1 << 20


async def silent(request: web.Request) -> web.Response:
    await asyncio.sleep(30.0)
    return web.Response()


async def stopping(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"one\ntwo\nth")
    await asyncio.sleep(30.0)
    return response


async def long(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(5 * 1024):
        await response.write(b"x" * 1024)
    await response.write(b"\nshort\n\nlast")
    return response


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    routes = {"/silent": silent, "/stopping": stopping, "/long": long}
    async with serving(routes, tmp_path, timeout_seconds=1.0) as found:
        yield found


async def test_an_answer_has_to_begin_in_time(client: Client) -> None:
    for timeout_seconds in (None, 60.0):
        with pytest.raises(Unreachable, match="in time"):
            await anext(stream_lines(client, "/silent", timeout_seconds=timeout_seconds))


async def test_text_may_have_a_shorter_deadline(client: Client) -> None:
    began = time.monotonic()
    with pytest.raises(Unreachable, match="in time"):
        await read_text(client, "/silent", timeout_seconds=0.1)
    assert time.monotonic() - began < 0.9


async def test_a_log_that_stops_ends_and_one_that_is_followed_goes_on(client: Client) -> None:
    bounded = stream_lines(client, "/stopping", timeout_seconds=0.3)
    assert [await anext(bounded), await anext(bounded)] == ["one", "two"]
    with pytest.raises(Unreachable, match="in time"):
        await anext(bounded)
    async with contextlib.aclosing(stream_lines(client, "/stopping", timeout_seconds=None)) as lines:
        assert [await anext(lines), await anext(lines)] == ["one", "two"]
        following = asyncio.ensure_future(anext(lines))
        done, _ = await asyncio.wait({following}, timeout=1.5)  # more than the client's deadline
        assert not done
        following.cancel()
        await asyncio.wait({following})


async def test_a_reader_may_take_its_time(client: Client) -> None:
    async with contextlib.aclosing(stream_lines(client, "/long", timeout_seconds=0.5)) as lines:
        await anext(lines)
        await asyncio.sleep(0.7)  # the deadline passes here, and does not interrupt this


async def test_a_long_line_is_cut(client: Client) -> None:
    first, *rest = [line async for line in stream_lines(client, "/long", timeout_seconds=60.0)]
    assert first == "x" * MIB + " …"
    assert rest == ["short", "", "last"]
