"""A user's own gateway with a shared address: serves an API server below /clusters/<path>/control-plane.

The command is `python gateway.py PORT CERTIFICATE KEY PATH BACKEND BACKEND_CA`. The program uses the standard library
alone, so that it runs as a process on this machine and in a Pod. Each connection carries a single request: the gateway
rewrites the head of the request, and copies all further bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from urllib.parse import urlsplit

_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def rewritten(head: bytes, *, prefix: str, host: str) -> bytes | None:
    """Return the head of a request with the prefix removed from its path; None if the path has another prefix."""
    request, *headers = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, target, version = request.split(" ", 2)
    if not target.startswith(f"{prefix}/"):
        return None
    kept = [line for line in headers if line.split(":", 1)[0].lower() not in {"host", "connection"}]
    lines = [f"{method} {target.removeprefix(prefix)} {version}", f"Host: {host}", "Connection: close", *kept]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Copy bytes until the source ends."""
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()


async def serve(port: int, certificate: str, key: str, prefix: str, backend: str, ca: str) -> None:
    """Serve requests until cancelled."""
    url = urlsplit(backend)
    host, number = url.hostname or "", url.port or 443
    to_backend = ssl.create_default_context(cafile=ca)
    for_clients = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    for_clients.load_cert_chain(certificate, key)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Clients and the backend can disconnect at any time. Such an error ends only this request.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, ssl.SSLError):
            head = rewritten(await reader.readuntil(b"\r\n\r\n"), prefix=prefix, host=f"{host}:{number}")
            if head is None:
                writer.write(_NOT_FOUND)
                await writer.drain()
            else:
                await exchange(head, reader, writer)
        writer.close()

    async def exchange(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(host, number, ssl=to_backend)
        requests.write(head)
        body = asyncio.create_task(pass_on(reader, requests))
        answer = asyncio.create_task(pass_on(answers, writer))
        # The exchange ends with the answer, or when the client disconnects, for example from a watch.
        _, pending = await asyncio.wait((body, answer), return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(body, answer, return_exceptions=True)
        requests.close()

    server = await asyncio.start_server(handle, None, port, ssl=for_clients)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), *sys.argv[2:]))
