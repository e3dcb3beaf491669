"""The egress proxy of API servers connects only to allowed destinations, judged by the address that it dials."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kplane.egress_proxy import main as egress_proxy
from kplane.egress_proxy.main import Destinations, Proxy
from kplane.pki.primitives import KeyPair, create_authority, issue_client, issue_serving

TOLD = "allowedDestinations of the class of this control plane have no"


@dataclass
class Listener:
    """Echo server that counts its connections."""

    port: int = 0
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while chunk := await reader.read(65536):
                writer.write(chunk)
                await writer.drain()
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def serving(serve: Callable[..., Awaitable[None]]) -> AsyncIterator[int]:
    tasks: set[asyncio.Task[None]] = set()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(ConnectionError):
            await serve(reader, writer)

    async with await asyncio.start_server(served, "127.0.0.1", 0, limit=8192) as server:
        yield server.sockets[0].getsockname()[1]
        server.close()
        for task in tasks:
            # Each task ends by itself after the test has closed its connections.
            await asyncio.wait_for(task, 30.0)


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    echo_server = Listener()
    async with serving(echo_server.serve) as echo_server.port:
        yield echo_server


async def ask(port: int, request: str) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
    """Send the request of an API server; return the status line, the reader and the writer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.encode())
    head = await reader.readuntil(b"\r\n\r\n")
    return head.decode().partition("\r\n")[0], reader, writer


async def status(port: int, target: str) -> str:
    line, _, writer = await ask(port, f"CONNECT {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    writer.close()
    return line


async def test_allowed_destination_exchanges_bytes_in_both_directions(listener: Listener) -> None:
    async with serving(Proxy(Destinations.parse([f"127.0.0.0/8={listener.port}"])).serve) as port:
        line, reader, writer = await ask(port, f"CONNECT 127.0.0.1:{listener.port} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert line == "HTTP/1.1 200 Connected"
        sent = bytes(range(256)) * 4096
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent
        writer.close()
    assert listener.connections == 1


async def test_disallowed_destinations_are_not_dialled(listener: Listener) -> None:
    port_of = listener.port
    forms = [
        "127.0.0.1",
        "localhost",
        "[::ffff:127.0.0.1]",
        "2130706433",
        "0x7f.1",
        "127.1",
        "[::1]",
        "0.0.0.0",
        "[::]",
    ]
    rules = [f"10.0.0.0/8={port_of}", f"127.0.0.1/32={port_of ^ 1}", f"::ffff:10.0.0.0/104={port_of}"]
    async with serving(Proxy(Destinations.parse(rules)).serve) as port:
        for form in forms:
            assert TOLD in await status(port, f"{form}:{port_of}"), form
        assert TOLD in await status(port, "169.254.169.254:80")
        assert TOLD in await status(port, "kubernetes.invalid:443")
    assert listener.connections == 0


async def test_proxy_dials_the_address_that_it_has_checked(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lookup of the name gives another answer: the second answer has no allowed address."""
    answers = iter([["127.0.0.2", "127.0.0.1"], ["127.0.0.2"]])
    lookups: list[str] = []
    loop = asyncio.get_running_loop()
    original = loop.getaddrinfo

    async def rebinding(host: Any, port: Any, **given: Any) -> Any:
        if host != "rebinds.example":
            return await original(host, port, **given)
        lookups.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in next(answers)]

    async with serving(Proxy(Destinations.parse([f"127.0.0.1/32={listener.port}"])).serve) as port:
        monkeypatch.setattr(loop, "getaddrinfo", rebinding)
        assert await status(port, f"rebinds.example:{listener.port}") == "HTTP/1.1 200 Connected"
        assert TOLD in await status(port, f"rebinds.example:{listener.port}")
    assert (listener.connections, len(lookups)) == (1, 2)


@pytest.mark.parametrize(
    "request_",
    [
        "GET http://127.0.0.1/ HTTP/1.1\r\n\r\n",
        "CONNECT 127.0.0.1 HTTP/1.1\r\n\r\n",
        "CONNECT 127.0.0.1:0 HTTP/1.1\r\n\r\n",
        "CONNECT 127.0.0.1:65536 HTTP/1.1\r\n\r\n",
        "CONNECT a b:1 HTTP/1.1\r\n\r\n",
        "CONNECT [fe80::1%eth0]:1 HTTP/1.1\r\n\r\n",
    ],
)
async def test_malformed_request_gets_status_400(request_: str) -> None:
    async with serving(Proxy(Destinations.parse(["127.0.0.0/8=1"])).serve) as port:
        line, _, writer = await ask(port, request_)
        writer.close()
        assert line.startswith("HTTP/1.1 400 ")


async def test_refused_connection_gets_status_502_with_cause(hold_port: Any) -> None:
    closed = hold_port()
    async with serving(Proxy(Destinations.parse([f"127.0.0.0/8={closed}"])).serve) as port:
        assert await status(port, f"127.0.0.1:{closed}") == (
            f"HTTP/1.1 502 failed to connect to 127.0.0.1:{closed}: Connection refused"
        )


async def test_connection_above_limit_gets_status_503(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_proxy, "_CONNECTIONS", 1)
    async with serving(Proxy(Destinations.parse([f"127.0.0.0/8={listener.port}"])).serve) as port:
        _, _, first = await ask(port, f"CONNECT 127.0.0.1:{listener.port} HTTP/1.1\r\n\r\n")
        assert "503" in await status(port, f"127.0.0.1:{listener.port}")
        first.close()


async def test_proxy_accepts_only_client_certificates_of_its_ca(
    tmp_path: Path, listener: Listener, hold_port: Any, eventually: Any
) -> None:
    """The proxy starts as in production: a file, an interpreter without packages, TLS with client certificates."""
    authority, other = create_authority("front-proxy"), create_authority("front-proxy")
    server = issue_serving(authority, common_name="egress-proxy", hosts=["127.0.0.1"])
    keep(tmp_path / "server", server)
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    port = hold_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", egress_proxy.__file__, f"--listen=127.0.0.1:{port}"),
        *(f"--certificate={tmp_path}/server.crt", f"--key={tmp_path}/server.key", f"--ca={tmp_path}/ca.crt"),
        f"--allow=127.0.0.0/8=1,{listener.port}",
        env={},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        assert b"listens at" in await process.stderr.readline()

        async def connect(client: KeyPair | None) -> bytes:
            context = ssl.create_default_context(cadata=authority.certificate.decode())
            if client is not None:
                keep(tmp_path / "client", client)
                context.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(f"CONNECT 127.0.0.1:{listener.port} HTTP/1.1\r\n\r\n".encode())
            try:
                return await reader.readuntil(b"\r\n\r\n")
            finally:
                writer.close()

        assert b" 200 " in await connect(issue_client(authority, user="front-proxy-client"))
        # A server certificate of the same authority, such as `server`, is not accepted as a client certificate.
        for stranger in (None, issue_client(other, user="front-proxy-client"), server):
            with pytest.raises((OSError, EOFError)):
                await connect(stranger)
        assert listener.connections == 1
    finally:
        process.terminate()
        written = await process.stderr.read()
    assert await process.wait() == 0, written
    assert not re.search(rb"Traceback|Error", written), written


def keep(path: Path, pair: KeyPair) -> None:
    path.with_suffix(".crt").write_bytes(pair.certificate)
    path.with_suffix(".key").write_bytes(pair.key)
