"""Limits of the client against hostile servers, counted in bytes, objects and values."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from typing_extensions import override

from kplane.provider import Client, ProviderError, Unreachable
from kplane.provider.client.limits import Allowance, AnswerLimits
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES, SECRETS
from kplane.provider.errors import AnswerTooLarge, Forbidden

KIB = 1024
FaultServer = Callable[..., Awaitable[Any]]
OBJECT = {"metadata": {"name": "a"}}


class Watched(Allowance):
    """An allowance that records its highest use."""

    most = 0

    @override
    def take(self, amount: int, *, server: str) -> None:
        super().take(amount, server=server)
        self.most = max(self.most, self.taken_bytes)


def always(content: bytes) -> Callable[..., Awaitable[None]]:
    async def answer(asked: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(content)

    return answer


def large(size: int) -> bytes:
    """Return an object of `size` bytes with few values."""
    frame = len(json.dumps({**OBJECT, "data": {"filler": ""}}))
    return json.dumps({**OBJECT, "data": {"filler": "x" * (size - frame)}}).encode()


async def test_endless_response_is_dropped_at_its_limit(fault_server: FaultServer, tools: Any) -> None:
    sent = 0

    async def answer(asked: Any, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(tools.stream_head() + tools.chunk(b'{"metadata":{"name":"'))
        while not writer.is_closing():
            writer.write(tools.chunk(b"a" * 16 * KIB))
            await writer.drain()
            await asyncio.sleep(0)
            sent += 16 * KIB

    together = Watched(1000 * KIB)
    limits = AnswerLimits(answer_bytes=256 * KIB, together=together)
    server = await fault_server(answer)
    async with Client(server.config, limits=limits) as client:
        for call in (client.get(NAMESPACES, "a"), client.list(NAMESPACES), client.request("GET", "/version")):
            with pytest.raises(AnswerTooLarge, match=f"more than {256 * KIB} bytes; refused") as caught:
                await call
            assert isinstance(caught.value, Unreachable)
            assert (caught.value.kind, caught.value.reason) == ("protocol", "AnswerTooLarge")
    assert sent < 64 * 1024 * KIB
    assert together.most <= 256 * KIB
    assert together.taken_bytes == 0


@pytest.mark.parametrize("status", [200, 403])
async def test_response_is_refused_one_byte_above_the_limit(fault_server: FaultServer, tools: Any, status: int) -> None:
    limits = AnswerLimits(answer_bytes=100 * KIB)
    server = await fault_server(always(tools.http(large(100 * KIB))))
    async with Client(server.config, limits=limits) as client:
        assert (await client.get(NAMESPACES, "a"))["metadata"]["name"] == "a"
    server = await fault_server(always(tools.http(large(100 * KIB + 1), status=status)))
    async with Client(server.config, limits=limits) as client:
        with pytest.raises(AnswerTooLarge):
            await client.get(NAMESPACES, "a")


async def test_list_bytes_are_limited_over_all_pages(fault_server: FaultServer, tools: Any) -> None:
    body = json.dumps({"metadata": {"continue": "more"}, "items": [json.loads(large(100 * KIB))]}).encode()
    server = await fault_server(always(tools.http(body)))
    together = Watched(10_000 * KIB)
    limits = AnswerLimits(answer_bytes=200 * KIB, list_bytes=1000 * KIB, together=together)
    async with Client(server.config, limits=limits) as client:
        with pytest.raises(AnswerTooLarge, match=f"more than {1000 * KIB} bytes"):
            await client.list(NAMESPACES, page_size=1)
    assert len(server.asked) == 10
    assert together.most <= 1000 * KIB
    assert together.taken_bytes == 0


async def test_endless_empty_pages_are_refused(fault_server: FaultServer, tools: Any) -> None:
    server = await fault_server(always(tools.http({"metadata": {"continue": "more"}, "items": []})))
    async with Client(server.config, limits=AnswerLimits(list_bytes=2 * KIB)) as client:
        with pytest.raises(AnswerTooLarge):
            await client.list(NAMESPACES)
    assert len(server.asked) < 60


async def test_list_is_refused_above_max_items(fault_server: FaultServer, tools: Any) -> None:
    server = await fault_server(always(tools.http({"metadata": {"continue": "more"}, "items": [OBJECT] * 4})))
    async with Client(server.config) as client:
        with pytest.raises(AnswerTooLarge, match="has more namespaces of those asked for than 10"):
            await client.list(NAMESPACES, max_items=10)
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    "content",
    [b'{"metadata":{},"x":' + b"[" * 500 + b"]" * 500 + b"}", b'{"metadata":{},"x":[' + b"0," * 500 + b"0]}"],
    ids=["nested", "flat"],
)
async def test_response_with_too_many_values_is_not_parsed(
    fault_server: FaultServer, tools: Any, content: bytes
) -> None:
    together = Watched(1000 * KIB)
    server = await fault_server(always(tools.http(content)))
    async with Client(server.config, limits=AnswerLimits(values=500, together=together)) as client:
        with pytest.raises(AnswerTooLarge, match="more than 500 values"):
            await client.get(NAMESPACES, "a")
    async with Client(server.config, limits=AnswerLimits(values=600, together=together)) as client:
        assert (await client.get(NAMESPACES, "a"))["x"]


async def test_values_are_limited_over_all_pages(fault_server: FaultServer, tools: Any) -> None:
    server = await fault_server(always(tools.http({"metadata": {"continue": "more"}, "items": [OBJECT] * 100})))
    async with Client(server.config, limits=AnswerLimits(values=1000)) as client:
        with pytest.raises(AnswerTooLarge, match="more than 1000 values"):
            await client.list(NAMESPACES)
    assert len(server.asked) < 6


async def test_large_responses_share_an_allowance_and_small_ones_pass(
    fault_server: FaultServer, tools: Any, eventually: Callable[..., Awaitable[Any]]
) -> None:
    release, together = asyncio.Event(), Watched(300 * KIB)
    content = tools.http(large(100 * KIB))

    async def slow(asked: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(content[:-1])
        await writer.drain()
        await release.wait()
        writer.write(content[-1:])

    limits = AnswerLimits(together=together)
    slow_config = (await fault_server(slow)).config
    prompt_config = (await fault_server(always(tools.http(OBJECT)))).config
    async with Client(slow_config, limits=limits) as first, Client(prompt_config, limits=limits) as second:
        reading = [asyncio.ensure_future(first.get(NAMESPACES, "a")) for _ in range(3)]
        await eventually(lambda: together.taken_bytes, lambda taken: taken > 295 * KIB)
        with pytest.raises(AnswerTooLarge, match="large answers of many servers are under way"):
            await first.get(NAMESPACES, "a")
        assert await second.get(NAMESPACES, "a")
        release.set()
        assert [found["metadata"]["name"] for found in await asyncio.gather(*reading)] == ["a"] * 3
        assert together.taken_bytes == 0
        assert await first.get(NAMESPACES, "a")
    assert together.most <= 300 * KIB


async def test_unused_response_bodies_are_not_buffered(fault_server: FaultServer, tools: Any) -> None:
    server = await fault_server(always(tools.http(large(500 * KIB))))
    together = Watched(10_000 * KIB)
    async with Client(server.config, limits=AnswerLimits(together=together)) as client:
        assert await client.exists(NAMESPACES, "a")
        await client.delete_all(SECRETS, namespace="b", label_selector="c=d")
        await client.probe()
    assert together.most == 0
    assert [(asked.method, asked.target) for asked in server.asked] == [
        ("GET", "/api/v1/namespaces/a"),
        ("DELETE", "/api/v1/namespaces/b/secrets?labelSelector=c%3Dd"),
        ("GET", "/readyz"),
    ]
    assert server.asked[0].headers["accept"].startswith("application/json;as=PartialObjectMetadata;")


async def test_exists_returns_false_for_not_found(fault_server: FaultServer, tools: Any) -> None:
    status = {"kind": "Status", "reason": "NotFound"}
    server = await fault_server(always(tools.http(status, status=404)))
    async with Client(server.config) as client:
        assert not await client.exists(NAMESPACES, "a")


async def test_delete_all_requires_a_label_and_a_namespace(fault_server: FaultServer, tools: Any) -> None:
    server = await fault_server(always(tools.http({})))
    async with Client(server.config) as client:
        with pytest.raises(ProviderError, match="without a label"):
            await client.delete_all(SECRETS, namespace="b", label_selector="")
        with pytest.raises(ProviderError, match="a namespace is needed"):
            await client.delete_all(SECRETS, label_selector="c=d")
    assert server.asked == []


async def test_metadata_list_drops_other_fields_that_the_server_sends(fault_server: FaultServer, tools: Any) -> None:
    page = {"metadata": {"resourceVersion": "7"}, "items": [{**OBJECT, "kind": "Other", "data": {"b": "c"}}]}
    server = await fault_server(always(tools.http(page)))
    async with Client(server.config) as client:
        found = await client.list(CONFIG_MAPS, metadata_only=True)
    assert found.items == [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}]
    assert ";as=PartialObjectMetadataList;" in server.asked[0].headers["accept"]


async def test_texts_of_the_server_are_printable_and_bounded(fault_server: FaultServer, tools: Any) -> None:
    said = "no\r\n\x1b[31mred\u202e" + "x" * 100_000
    refusal = {"kind": "Status", "reason": "Bad\nReason" + "y" * 1000, "message": said}
    server = await fault_server(always(tools.http(refusal, status=403)))
    async with Client(server.config) as client:
        with pytest.raises(Forbidden) as caught:
            await client.get(NAMESPACES, "a")
    assert "no   [31mred xxx" in caught.value.message
    for text in (str(caught.value), caught.value.message, caught.value.reason):
        assert text.isprintable()
        assert len(text) <= 2000
    moved = f"Location: https://elsewhere.test/{'z' * 7000}\r\n"
    server = await fault_server(always(tools.http(b"", status=307, headers=moved)))
    async with Client(server.config) as client:
        with pytest.raises(Unreachable, match="elsewhere") as unreachable:
            await client.get(NAMESPACES, "a")
    assert len(str(unreachable.value)) <= 2000


async def test_watch_event_above_the_limit_is_refused(fault_server: FaultServer, tools: Any) -> None:
    async def answer(asked: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(tools.stream_head())
        while not writer.is_closing():
            writer.write(tools.chunk(b"a" * 16 * KIB))
            await writer.drain()
            await asyncio.sleep(0)

    server = await fault_server(answer)
    async with (
        Client(server.config, limits=AnswerLimits(answer_bytes=256 * KIB)) as client,
        client.watch(NAMESPACES, resource_version=None) as watch,
    ):
        with pytest.raises(AnswerTooLarge, match="sent an event of more than"):
            async for _ in watch:
                pass
