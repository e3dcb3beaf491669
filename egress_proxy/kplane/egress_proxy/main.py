"""Egress proxy of a tenant's API server: an HTTP CONNECT proxy that connects to allowed networks and ports only.

A proxy runs for each control plane whose class allows destinations. The proxy imports the standard library alone, and
is started by the path of this file, so that it takes 14 MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import logging
import os
import re
import signal
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Destinations", "Proxy", "main"]

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_HEAD_BYTES: Final = 8 << 10
_CHUNK_BYTES: Final = 16 << 10
_HEAD_SECONDS: Final = 10.0
_CONNECT_SECONDS: Final = 10.0
"""Timeout for all addresses of a name together. The API server itself has no timeout for the proxy's answer."""
_CONNECTIONS: Final = 128
"""Maximum number of connections. A busy connection takes 0.7 MiB; the process may use 128 MiB."""
_REQUEST: Final = re.compile(rb"CONNECT (\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253}):([0-9]{1,5}) HTTP/1[.][01]\r\n")

_log = logging.getLogger("egress-proxy")


class _Refused(Exception):
    """Refusal of a request: the status of the answer, and a sentence that the API server passes on."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True)
class Destinations:
    """Allowed networks and ports."""

    rules: Sequence[tuple[_Network, frozenset[int]]]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Destinations:
        """Parse rules of the form `10.20.0.0/16=443,10250`. Raises ValueError for other input."""
        rules = []
        for text in texts:
            network, _, ports = text.partition("=")
            rules.append((ipaddress.ip_network(network), frozenset(int(port) for port in ports.split(","))))
        return cls(tuple(rules))

    def allow(self, address: str, *, port: int) -> bool:
        """Return whether a connection to a numeric address is allowed."""
        parsed = ipaddress.ip_address(address)
        return any(parsed in network and port in ports for network, ports in self.rules)

    async def resolve(self, host: str, *, port: int) -> list[str]:
        """Return the allowed numeric addresses of a host. The caller must connect only to these addresses."""
        try:
            entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return []
        addresses = dict.fromkeys(str(entry[4][0]) for entry in entries)
        return [address for address in addresses if self.allow(address, port=port)]


class Proxy:
    """Answers CONNECT requests, and copies bytes in both directions until either side ends."""

    def __init__(self, destinations: Destinations) -> None:
        self._destinations = destinations
        self._connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until its end."""
        self._connections += 1
        try:
            await self._answer(reader, writer)
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError) as error:
            _log.info("a connection ended: %r", error)
        finally:
            self._connections -= 1
            await _close(writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream = await self._connect(reader)
        except _Refused as refused:
            _log.warning("refused: %s", refused)
            writer.write(f"HTTP/1.1 {refused.status} {refused}\r\nContent-Length: 0\r\n\r\n".encode())
            await writer.drain()
            return
        try:
            writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            await _tunnel((reader, writer), upstream)
        finally:
            await _close(upstream[1])

    async def _connect(self, reader: asyncio.StreamReader) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(_HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        request = _REQUEST.match(head)
        if request is None or not 0 < int(request[2]) < 1 << 16:
            raise _Refused(400, "this is no CONNECT request for a host and a port")
        host, port = request[1].decode().strip("[]"), int(request[2])
        if self._connections > _CONNECTIONS:
            raise _Refused(503, f"this control plane has {_CONNECTIONS} connections to the outside already")
        failure: OSError | None = None
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                for address in await self._destinations.resolve(host, port=port):
                    try:
                        return await _dial(address, port=port)
                    except OSError as error:
                        failure = error
        except TimeoutError:
            raise _Refused(504, f"{host}:{port} does not answer") from None
        if failure is not None:
            cause = os.strerror(failure.errno) if failure.errno is not None else "no answer"
            raise _Refused(502, f"failed to connect to {host}:{port}: {cause}")
        # A name that does not exist gets the same answer: tenants must not learn names of the management cluster.
        raise _Refused(403, f"allowedDestinations of the class of this control plane have no {host}:{port}")


async def _dial(address: str, *, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(address, port, limit=_CHUNK_BYTES)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return reader, writer


async def _tunnel(
    one: tuple[asyncio.StreamReader, asyncio.StreamWriter], other: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    """Copy bytes until the end of either side. TLS has no half-closed connections."""
    pumps = [asyncio.create_task(_pump(one[0], other[1])), asyncio.create_task(_pump(other[0], one[1]))]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_HEAD_SECONDS):
            await writer.wait_closed()


def _tls(*, certificate: str, key: str, ca: str) -> ssl.SSLContext:
    """Return the TLS settings of the server, which requires a client certificate of `ca`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(ca)
    return context


async def _run(given: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    proxy = Proxy(Destinations.parse(given.allow))
    host, _, port = given.listen.rpartition(":")
    server = await asyncio.start_server(
        proxy.serve,
        host.strip("[]"),
        int(port),
        limit=_HEAD_BYTES,
        ssl=_tls(certificate=given.certificate, key=given.key, ca=given.ca),
        ssl_handshake_timeout=_HEAD_SECONDS,
    )
    _log.info("listens at %s, and connects to %s", given.listen, " ".join(given.allow))
    await stop.wait()
    server.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT, which ends all connections."""
    parser = argparse.ArgumentParser(prog="egress-proxy", description=__doc__)
    for name, meaning in (
        ("listen", "address and port"),
        ("certificate", "file with the certificate of this server"),
        ("key", "file with its key"),
        ("ca", "file with the CA of clients"),
    ):
        parser.add_argument(f"--{name}", required=True, help=meaning)
    parser.add_argument("--allow", action="append", required=True, help="network and ports, as 10.20.0.0/16=443,10250")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    asyncio.run(_run(parser.parse_args(arguments)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
