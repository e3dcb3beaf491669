"""A scrape leaves out instances that are silent, endless or not authentic. They do not delay other instances."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, create_autospec

import aiohttp
import pytest

from kplane.api.configuration import HostPort
from kplane.mcm.describe.certificate import ReaderCertificate, ServingCertificate
from kplane.mcm.errors import McmError
from kplane.mcm.instance.lifecycle import Origin, Target
from kplane.mcm.serving.metrics import Metrics
from kplane.mcm.serving.overview import Overview
from kplane.mcm.serving.scrape import ScrapeLimits, Scraper
from kplane.mcm.serving.server import serve_status

Eventually = Callable[..., Any]
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]

PROGRAM = "kube-controller-manager"
READER = ReaderCertificate.create()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"


@contextlib.asynccontextmanager
async def instance(
    name: str, answer: Answer, *, authority: bytes | None = None, readers: ReaderCertificate = READER
) -> AsyncIterator[Target]:
    serving = ServingCertificate.create(host="127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=readers.certificate.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "pem")
        file.write_bytes(serving.certificate + serving.key)
        context.load_cert_chain(file)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    try:
        yield Target(Origin(name, PROGRAM), f"https://127.0.0.1:{port}/metrics", authority or serving.certificate)
    finally:
        server.close()


async def good(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"up 1\n")
    await writer.drain()


async def silent(_: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def dripping(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)


async def forbidden(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
    await writer.drain()


async def garbage(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\xff\r\n\r\n")
    await writer.drain()


@pytest.mark.parametrize("answer", [silent, endless, dripping, forbidden, garbage])
async def test_misbehaving_instance_alone_is_left_out_of_the_scrape(answer: Answer) -> None:
    limits = ScrapeLimits(deadline_seconds=5.0, timeout_seconds=1.0, bytes_each=1 << 20)
    async with (
        instance("bad", answer) as bad_target,
        instance("good", good) as good_target,
        Scraper(READER, limits=limits) as scraper,
        asyncio.timeout(4.0),
    ):
        assert await scraper.scrape([bad_target, good_target], take=lambda _, text: text) == {
            Origin("good", PROGRAM): "up 1\n"
        }


async def test_scrape_reads_silent_instances_last_after_a_failure() -> None:
    limits = ScrapeLimits(deadline_seconds=0.5, timeout_seconds=0.4, at_once=2)
    async with contextlib.AsyncExitStack() as stack:
        bad_targets = [await stack.enter_async_context(instance(f"bad{number}", silent)) for number in range(6)]
        good_target = await stack.enter_async_context(instance("good", good))
        scraper = await stack.enter_async_context(Scraper(READER, limits=limits))
        await stack.enter_async_context(asyncio.timeout(60.0))  # silent instances never answer
        first = await scraper.scrape([*bad_targets, good_target], take=lambda _, text: text)
        # In the first scrape, the silent instances before it take all of the time. In the next scrape it comes first.
        assert first == {}
        failing_last = await scraper.scrape([good_target, *bad_targets], take=lambda _, text: text)
        assert failing_last == {Origin("good", PROGRAM): "up 1\n"}
        assert await scraper.scrape([*bad_targets, good_target], take=lambda _, text: text) == {
            Origin("good", PROGRAM): "up 1\n"
        }


async def test_scrape_needs_authentic_instance_and_authorized_reader() -> None:
    another = ServingCertificate.create(host="127.0.0.1").certificate
    async with (
        instance("impostor", good, authority=another) as impostor,
        instance("guarded", good, readers=ReaderCertificate.create()) as guarded,
        Scraper(READER) as scraper,
    ):
        assert await scraper.scrape([impostor, guarded], take=lambda _, text: text) == {}


async def test_instance_whose_metrics_exceed_the_total_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def take(target: Target, text: str) -> str:
        if target.origin.cluster == "second":
            raise McmError("all instances together say more than is passed on")
        return text

    caplog.set_level("INFO")
    async with (
        instance("first", good) as first,
        instance("second", good) as second,
        Scraper(READER) as scraper,
    ):
        assert list(await scraper.scrape([first, second], take=take)) == [Origin("first", PROGRAM)]
    assert f"failed to read the metrics of {PROGRAM} of second" in caplog.text


async def test_disconnected_clients_do_not_delay_later_requests(
    eventually: Eventually, hold_port: Callable[[], int]
) -> None:
    scraper, overview = create_autospec(Scraper, instance=True), create_autospec(Overview, instance=True)
    overview.summaries.return_value, overview.targets.return_value = [], []
    permits = asyncio.Semaphore(0)

    async def scrape(*_: object, **__: object) -> dict[Origin, str]:
        await permits.acquire()
        return {}

    scraper.scrape.side_effect = scrape
    metrics, port = Metrics(overview, scraper=scraper), hold_port()
    metrics.render = AsyncMock(wraps=metrics.render)  # type: ignore[method-assign]
    async with (
        serve_status(HostPort("127.0.0.1", port), overview=overview, metrics=metrics, sources="x", synced=bool),
        aiohttp.ClientSession() as session,
    ):

        async def ask() -> str:
            async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                return await answer.text()

        requests = [asyncio.create_task(ask()) for _ in range(8)]
        await eventually(lambda: metrics.render.call_count == 8)
        for task in requests:
            task.cancel()
        await asyncio.wait(requests)
        last_request = asyncio.create_task(ask())
        await eventually(lambda: metrics.render.call_count == 9)
        for _ in range(2):
            permits.release()
        assert "mcm_clusters" in await asyncio.wait_for(last_request, 60.0)
        assert scraper.scrape.call_count == 2
