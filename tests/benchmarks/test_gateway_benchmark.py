"""Gateway benchmark: parsing of responses, failed watches, and a short run."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load import Target, is_complete, watch
from kplane.pki.primitives import create_authority, issue_serving

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("received", "complete"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Le", False),
        (_HEAD + b"Content-Length: 4\r\n\r\n{}", False),
        (_HEAD + b"content-length: 2\r\n\r\n{}", True),
        (_HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", False),
        (_HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", True),
    ],
    ids=["head", "part", "whole", "chunk", "last chunk"],
)
def test_response_is_complete_with_its_last_byte(received: bytes, complete: bool) -> None:
    assert is_complete(bytearray(received)) is complete


async def test_watches_are_closed_when_a_connection_fails(tmp_path: Path) -> None:
    authority = create_authority("serving")
    pair = issue_serving(authority, common_name="x", hosts=["127.0.0.1"])
    (tmp_path / "server.pem").write_bytes(pair.certificate + pair.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem")
    ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        # The server refuses further connections.
        server.close()
        rest = await reader.read()
        if not ended.done():
            ended.set_result(rest)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    tls = ssl.create_default_context(cadata=authority.certificate.decode())
    target = Target("127.0.0.1", server.sockets[0].getsockname()[1], "", "t", tls)
    with pytest.raises(OSError):
        async with watch(target, "/", connections=100):
            pytest.fail("there are not so many")
    assert await ended == b""


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_gateway_benchmark_measures_requests_and_watches(binaries: object, measure: Any) -> None:
    arguments = ("--rounds=1", "--seconds=1", "--watches=5", "--objects=10")
    report = await measure("gateway", *arguments)
    for compared in (*report["small_by_connections"].values(), report["lists"]):
        for way in ("direct", "gateway"):
            assert compared[way]["requests_a_second"] > 0
            assert compared[way]["errors"] == 0
        assert compared["throughput_ratio"] > 0
    assert report["lists"]["direct"]["bytes_each"] > 10 * 1024
    assert (report["watches"]["told"], report["watches"]["lost"]) == (5, 0)
