"""Raw requests over HTTP/1.1 and HTTP/2, which regular clients would not send."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

__all__ = ["exchange", "http1", "http2", "statuses"]

_SECONDS = 20.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _SETTINGS, _DATA, _GOAWAY, _RESET = 1, 4, 0, 7, 3
_END_STREAM, _END_HEADERS = 1, 4


def http1(target: str, *headers: str, method: str = "GET", host: str = "gateway", body: bytes = b"") -> bytes:
    lines = (f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close", *headers)
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def http2(pseudo: Iterable[tuple[str, str]], headers: Iterable[tuple[str, str]] = (), *, body: bytes = b"") -> bytes:
    block = b"".join(_literal(name, value) for name, value in (*pseudo, *headers))
    flags = _END_HEADERS | (0 if body else _END_STREAM)
    frames = [_frame(_SETTINGS, 0, 0, b""), _frame(_HEADERS, flags, 1, block)]
    if body:
        frames.append(_frame(_DATA, _END_STREAM, 1, body))
    return _PREFACE + b"".join(frames)


def _literal(name: str, value: str) -> bytes:
    """A header without indexing and without Huffman's code (RFC 7541, 6.2.2)."""
    return b"\0" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    content, length = text.encode("latin-1"), len(text)
    if length < 127:
        return bytes([length]) + content
    rest, digits = length - 127, bytearray([127])
    while rest >= 128:
        digits.append(rest % 128 + 128)
        rest //= 128
    digits.append(rest)
    return bytes(digits) + content


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


async def exchange(
    port: int,
    sent: bytes | AsyncIterator[bytes],
    *,
    ca: bytes,
    certificate: Path | None = None,
    protocol: str = "http/1.1",
    to_the_end: bool = False,
    host: str = "localhost",
    source: str | None = None,
    seconds: float = _SECONDS,
) -> bytes:
    """Send bytes, and return the response. `to_the_end` returns all bytes until the server closes the connection.

    `source` is the address of the client, such as 127.0.0.2.
    """
    context = ssl.create_default_context(cadata=ca.decode())
    context.set_alpn_protocols([protocol])
    if certificate is not None:
        context.load_cert_chain(certificate)
    is_complete = _ended if protocol == "h2" else _answered
    received = b""
    async with asyncio.timeout(seconds):
        local = (source, 0) if source is not None else None
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname=host, local_addr=local
        )
        try:
            with contextlib.suppress(OSError, EOFError):
                async for part in _parts(sent):
                    writer.write(part)
                    await writer.drain()
                while (to_the_end or not is_complete(received)) and (chunk := await reader.read(65536)):
                    received += chunk
        finally:
            writer.transport.abort()
    return received


async def _parts(sent: bytes | AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if isinstance(sent, bytes):
        yield sent
        return
    async for part in sent:
        yield part


def _answered(received: bytes) -> bool:
    """Whether the bytes contain a whole HTTP/1.1 response. Envoy waits a second before it closes a connection."""
    head, separator, body = received.partition(b"\r\n\r\n")
    if not separator:
        return False
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    if b"content-length" in fields:
        return len(body) >= int(fields[b"content-length"])
    return body.endswith(b"0\r\n\r\n")


def _ended(received: bytes) -> bool:
    at = 0
    while at + 9 <= len(received):
        length = int.from_bytes(received[at : at + 3], "big")
        kind, flags = received[at + 3], received[at + 4]
        if at + 9 + length > len(received):
            return False
        if kind in {_RESET, _GOAWAY} or (kind in {_DATA, _HEADERS} and flags & _END_STREAM):
            return True
        at += 9 + length
    return False


def statuses(received: bytes) -> list[int]:
    """Return the status codes of all HTTP/1.1 responses in order."""
    return [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]
