"""The benchmark of the gateway, in seconds: its answers, its errors, and its JSON."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.load import is_complete

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
def test_an_answer_is_complete_when_its_last_byte_is_there(received: bytes, complete: bool) -> None:
    assert is_complete(bytearray(received)) is complete


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_short_measurement(binaries: object, measure: Any) -> None:
    arguments = ("--rounds=1", "--seconds=1", "--watches=5", "--objects=10")
    found = await measure("gateway", *arguments)
    for compared in (*found["small_by_connections"].values(), found["lists"]):
        for way in ("direct", "gateway"):
            assert compared[way]["requests_a_second"] > 0
            assert compared[way]["errors"] == 0
        assert compared["throughput_ratio"] > 0
    assert found["lists"]["direct"]["bytes_each"] > 10 * 1024
    assert (found["watches"]["told"], found["watches"]["lost"]) == (5, 0)
