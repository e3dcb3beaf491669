"""Connections by host name to sleeping control planes: waiting, forwarding and closing."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kplane.gateway import holder
from kplane.gateway.holder import Holder
from kplane.gateway.routes import Route, Sleep, Upstream
from kplane.gateway.waker import Waker

KEY = "uid-acme"
HOLDS = "hold a connection"
_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def header(key: str, *, addresses: bytes = b"\x11" + b"\x7f\0\0\1" * 2 + b"\0\1\0\2") -> bytes:
    """Return a PROXY protocol header as Envoy writes it: family, addresses, then fields."""
    fields = b"".join(
        bytes([kind]) + struct.pack(">H", len(value)) + value for kind, value in ((0x04, b"x"), (0xE0, key.encode()))
    )
    rest = addresses[1:] + fields
    return _SIGNATURE + b"\x21" + addresses[:1] + struct.pack(">H", len(rest)) + rest


class Service:
    """A holder, an API server that echoes its input, and the keys of wake-up requests."""

    def __init__(self, socket: Path, **limits: Any) -> None:
        self.socket = socket
        self.port = 0
        self.wakes: list[str] = []
        self.clients: list[asyncio.StreamWriter] = []
        self.waker = Waker(self._wake, **limits)
        self.ready = asyncio.Event()
        self.ready.set()
        self.holder = Holder(self.waker, is_ready=self._is_ready)

    async def _wake(self, route: Route, at: datetime) -> None:
        self.wakes.append(route.key)

    async def _is_ready(self, upstream: Upstream) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await self.ready.wait()
        return self.ready.is_set()

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
                if data == b"bye":
                    break
        writer.close()

    def tell(self, *, asleep: bool) -> None:
        upstream = Upstream.behind(f"https://127.0.0.1:{self.port}")
        sleep = Sleep(name="acme", since=datetime.now(UTC)) if asleep else None
        route = Route(key=KEY, cluster_path="acme", upstream=upstream, asleep=sleep, host="acme.example.org")
        path_route = replace(route, key="uid-by-path", host="", upstream=replace(upstream, ca=b"x"))
        self.waker.know([route, path_route])
        self.waker.reach([KEY, "uid-by-path"])

    async def connect(self, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(str(self.socket))
        self.clients.append(writer)
        writer.write(sent)
        return reader, writer


@pytest.fixture
async def service(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    service = Service(tmp_path / "s", **getattr(request, "param", {}))
    server = await asyncio.start_server(service.echo, "127.0.0.1", 0)
    service.port = server.sockets[0].getsockname()[1]
    service.tell(asleep=True)
    async with service.holder.listening(service.socket):
        yield service
        for client in service.clients:
            client.close()
    await service.waker.aclose()
    server.close()


async def test_holder_forwards_data_when_control_plane_is_awake(
    service: Service, eventually: Callable[..., Any]
) -> None:
    reader, writer = await service.connect(header(KEY) + b"hello")
    await eventually(lambda: service.waker.waiting, lambda waiting: waiting == 1)
    assert service.wakes == [KEY]
    service.tell(asleep=False)
    assert await reader.readexactly(5) == b"hello"
    large = bytes(range(256)) * 4096
    writer.write(large)
    assert await reader.readexactly(len(large)) == large
    # A half-close reaches the API server, which then closes its side.
    writer.write_eof()
    assert await reader.read() == b""
    assert service.waker.waiting == 0


async def test_holder_forwards_data_when_api_server_is_ready(service: Service, eventually: Callable[..., Any]) -> None:
    service.tell(asleep=False)
    service.ready.clear()
    reader, writer = await service.connect(header(KEY) + b"hello")
    await eventually(lambda: service.holder.unready, lambda count: count == 1)
    # It falls asleep meanwhile.
    service.tell(asleep=True)
    await eventually(lambda: service.wakes, lambda wakes: wakes == [KEY])
    service.tell(asleep=False)
    service.ready.set()
    assert await reader.readexactly(5) == b"hello"
    writer.write(b"again")
    assert await reader.readexactly(5) == b"again"
    assert service.holder.unready == 0


async def test_holder_closes_connection_when_api_server_stays_unready(
    service: Service, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    monkeypatch.setattr(holder, "_EACH_UNREADY", 1)
    service.tell(asleep=False)
    service.ready.clear()
    first_reader, first_writer = await service.connect(header(KEY))
    await eventually(lambda: service.holder.unready, lambda count: count == 1)
    reader, _ = await service.connect(header(KEY))
    assert await reader.read() == b""
    # A client that disconnects leaves its place.
    first_writer.close()
    await eventually(lambda: service.holder.unready, lambda count: count == 0)
    assert await first_reader.read() == b""
    monkeypatch.setattr(holder, "_READY_SECONDS", 0.05)
    reader, _ = await service.connect(header(KEY))
    assert await reader.read() == b""
    assert service.holder.unready == 0


@pytest.mark.parametrize("ipv6", [False, True])
async def test_holder_limits_address_to_ten_wakes(
    service: Service, eventually: Callable[..., Any], *, ipv6: bool
) -> None:
    def addresses(last: int) -> bytes:
        """Return addresses of a client. Addresses of an IPv6 network count as a single client."""
        source = b"\x20\x01\x0d\xb8" + bytes([0, last, *[0] * 9, last]) if ipv6 else b"\x7f\0\0" + bytes([last])
        return (b"\x21" if ipv6 else b"\x11") + source * 2 + b"\0\1\0\2"

    upstream, sleep = Upstream.behind(f"https://127.0.0.1:{service.port}"), Sleep(name="x", since=datetime.now(UTC))
    names = [f"n{number}" for number in range(11)]
    service.waker.know(
        Route(key=name, cluster_path=name, upstream=upstream, asleep=sleep, host=f"{name}.example.org")
        for name in names
    )
    for number, name in enumerate(names[:10], 1):
        await service.connect(header(name, addresses=addresses(1)))
        await eventually(lambda number=number: len(service.wakes), lambda found, number=number: found == number)
    reader, _ = await service.connect(header(names[10], addresses=addresses(1)))
    assert await reader.read() == b""
    assert service.wakes == names[:10]
    await service.connect(header(names[10], addresses=addresses(2)))
    await eventually(lambda: service.wakes, lambda wakes: wakes == names)


async def test_holder_closes_connection_when_api_server_closes(
    service: Service, eventually: Callable[..., Any]
) -> None:
    service.tell(asleep=False)
    reader, _ = await service.connect(header(KEY) + b"bye")
    assert await reader.read() == b"bye"
    await eventually(lambda: {task.get_name() for task in asyncio.all_tasks()}, lambda names: HOLDS not in names)


async def test_holder_stops_waiting_when_client_disconnects(service: Service, eventually: Callable[..., Any]) -> None:
    _, writer = await service.connect(header(KEY) + b"hello")
    await eventually(lambda: service.waker.waiting, lambda waiting: waiting == 1)
    writer.close()
    await eventually(lambda: service.waker.waiting, lambda waiting: waiting == 0)


async def test_holder_closes_connection_with_100_kb_before_wake(service: Service) -> None:
    reader, _ = await service.connect(header(KEY) + b"x" * 100_000)
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    assert service.waker.waiting == 0


@pytest.mark.parametrize("service", [{"each": 2}], indirect=True)
async def test_holder_closes_connections_beyond_limit(service: Service, eventually: Callable[..., Any]) -> None:
    connections = [await service.connect(header(KEY) + b"hello") for _ in range(2)]
    await eventually(lambda: service.waker.waiting, lambda found: found == 2)
    reader, _ = await service.connect(header(KEY) + b"hello")
    assert await reader.read() == b""
    service.tell(asleep=False)
    for reader, _ in connections:
        assert await reader.readexactly(5) == b"hello"


@pytest.mark.parametrize("service", [{"patience_seconds": 0.05}], indirect=True)
async def test_holder_closes_connection_after_timeout(service: Service) -> None:
    reader, _ = await service.connect(header(KEY) + b"hello")
    assert await reader.read() == b""
    assert service.wakes == [KEY]


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: acme.example.org\r\n\r\n",
        header("uid-unknown"),
        header("uid-by-path"),
        header("\xff"),
        _SIGNATURE + b"\x21\x11\0\0",
        _SIGNATURE + b"\x21\x11\0\x03\xe0\xff\xff",
        _SIGNATURE + b"\x21\xf1\0\0",
        _SIGNATURE + b"\x11\x11\0\0",
        header(KEY)[:-1],
    ],
)
async def test_holder_closes_connection_without_valid_host_name_key(service: Service, sent: bytes) -> None:
    service.tell(asleep=False)
    reader, writer = await service.connect(sent)
    writer.write_eof()
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    assert service.wakes == []


@pytest.mark.parametrize("addresses", [b"\0", b"\x11" + bytes(12), b"\x21" + bytes(36), b"\x31" + bytes(216)])
async def test_holder_reads_key_after_addresses_of_each_family(service: Service, addresses: bytes) -> None:
    service.tell(asleep=False)
    reader, _ = await service.connect(header(KEY, addresses=addresses) + b"hello")
    assert await reader.readexactly(5) == b"hello"


async def test_holder_closes_connection_when_api_server_is_absent(service: Service) -> None:
    service.port = 1
    service.tell(asleep=False)
    reader, _ = await service.connect(header(KEY) + b"hello")
    assert await reader.read() == b""
