"""Watches that are cut, stall, or carry invalid events."""

from __future__ import annotations

import asyncio
import json

import pytest

from kplane.provider import ApiError, Client, Unreachable
from kplane.provider.client.resources import NAMESPACES
from kplane.provider.errors import Expired


def event(kind, name, **fields):
    return json.dumps({"type": kind, "object": {"metadata": {"name": name, **fields}}}).encode() + b"\n"


@pytest.fixture
def follow(fault_server, tools):
    """`await follow([bytes, ...])`: the events of these chunks; None stalls the stream."""

    async def run(chunks, **options):
        async def answer(asked, writer):
            writer.write(tools.stream_head())
            for content in chunks:
                if content is None:
                    await asyncio.sleep(60)
                writer.write(tools.chunk(content))
                await writer.drain()
            writer.write(tools.chunk(b""))

        server = await fault_server(answer)
        seen = []
        async with (
            Client(server.config) as client,
            client.watch(NAMESPACES, resource_version="1", **options) as watch,
        ):
            try:
                async for found in watch:
                    seen.append((found.type, found.object["metadata"].get("name")))  # noqa: PERF401 - kept on errors
            except (ApiError, Unreachable) as error:
                return seen, error
            with pytest.raises(StopAsyncIteration):
                await anext(watch)
        return seen, None

    return run


async def test_watch_joins_events_split_over_chunks(follow):
    whole = event("ADDED", "a") + event("MODIFIED", "b") + b"\n" + event("BOOKMARK", "")
    for size in (1, 7, len(whole)):
        pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
        seen, error = await follow(pieces)
        assert seen == [("ADDED", "a"), ("MODIFIED", "b"), ("BOOKMARK", "")]
        assert error is None


async def test_watch_yields_whole_events_then_raises_on_half_an_event(follow):
    seen, error = await follow([event("ADDED", "a") + b'{"type":"ADD'])
    assert seen == [("ADDED", "a")]
    assert isinstance(error, Unreachable)
    assert "in the middle of an event" in str(error)


async def test_watch_raises_expired_on_410_in_the_stream(follow):
    status = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}
    seen, error = await follow([event("ADDED", "a"), json.dumps(status).encode() + b"\n"])
    assert seen == [("ADDED", "a")]
    assert isinstance(error, Expired)
    assert "too old" in str(error)


async def test_watch_raises_on_a_stall(follow):
    seen, error = await follow([event("ADDED", "a"), None], idle_timeout_seconds=0.3)
    assert seen == [("ADDED", "a")]
    assert error.timed_out
    assert "sent nothing for 0.3 s" in str(error)


@pytest.mark.parametrize(
    "line",
    [b"<html>\n", b"[]\n", b'{"type":"ADDED"}\n', b'{"type":"ODD","object":{"metadata":{}}}\n', b'{"type":"ERROR"}\n'],
)
async def test_watch_raises_protocol_error_for_invalid_events(follow, line):
    _, error = await follow([line])
    assert isinstance(error, Unreachable)
    assert error.kind == "protocol"


async def test_watch_raises_api_error_for_a_malformed_error_event(follow):
    _, error = await follow([b'{"type":"ERROR","object":{"code":"x"}}\n'])
    assert isinstance(error, ApiError)
    assert error.status == 500


async def test_watch_drops_managed_fields(follow, fault_server, tools):
    async def answer(asked, writer):
        writer.write(tools.stream_head() + tools.chunk(event("ADDED", "a", managedFields=[{"manager": "x"}])))

    server = await fault_server(answer)
    async with Client(server.config) as client, client.watch(NAMESPACES, resource_version="1") as watch:
        found = await anext(watch)
    assert found.object == {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}


async def test_watch_closed_while_opening_leaves_no_connection(fault_server, tools, eventually):
    asked, go_on = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def answer(_, writer):
        asked.set_result(writer)
        await go_on.wait()
        writer.write(tools.stream_head())
        await asyncio.sleep(60)

    server = await fault_server(answer)
    async with Client(server.config) as client:
        watch = client.watch(NAMESPACES)
        opening = asyncio.create_task(watch.open())
        connection = await asked
        await watch.aclose()
        go_on.set()
        await opening
        assert await watch.read() == []
        await eventually(connection.transport.is_closing)
