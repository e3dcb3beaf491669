"""Archive of a control plane's keys at one revision: a stream of frames with a count and a hash to detect damage.

A stream begins with a line that names the format. Frames follow: kind, length, content. The first frame is the header.
The last frame has the number of keys and their SHA-256, in the form of `compare.digest`.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kplane.data import prefix as prefixes
from kplane.data.api_server import is_place
from kplane.data.client import LARGEST_WRITTEN, Client, KeyValue
from kplane.data.compare import Digest
from kplane.data.errors import ArchiveDamaged, DataError
from kplane.data.template import is_mark

__all__ = ["Archive", "ArchiveReader", "Archived", "Pair", "archive"]

Pair = tuple[bytes, bytes]
"""A key without its prefix, and its value."""

_MAGIC: Final = b"kplane archive of a control plane, format 1\n"
_FRAME: Final = struct.Struct(">BI")
_PAIR: Final = struct.Struct(">II")
_HEADER: Final = 1
_PAIRS: Final = 2
_END: Final = 3
_BATCH: Final = 1 << 18
_LARGEST: Final = 16 << 20
"""Maximum size of a frame, in bytes. A value in etcd has at most 1.5 MiB, unless an administrator raises the limit."""
_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class Archived:
    """Description of the content of an archive."""

    header: Mapping[str, Any]
    revision: int
    """Revision of etcd at which all keys were read."""
    digest: Digest
    size: int
    """Size of the keys, without their prefix, and of their values, in bytes."""


class _Counter:
    """Counts and hashes pairs in the same way as `compare.digest`."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.keys = 0
        self.size = 0

    def add(self, key: bytes, value: bytes) -> None:
        for part in (key, value):
            self._hash.update(len(part).to_bytes(8, "big"))
            self._hash.update(part)
        self.keys += 1
        self.size += len(key) + len(value)

    def end(self) -> dict[str, Any]:
        return {"keys": self.keys, "bytes": self.size, "sha256": self._hash.hexdigest()}


class Archive:
    """The keys of a prefix as a stream; use `archive`."""

    def __init__(self, client: Client, prefix: str, header: Mapping[str, Any]) -> None:
        self._client = client
        self._prefix = prefix
        self._header = header
        self.archived: Archived | None = None
        """Description of the archive; None before the last chunk."""

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the chunks of the archive; call this once. Raises DataError."""
        head, counter, revision = prefixes.checked(self._prefix), _Counter(), 0
        async for page in self._client.pages(self._prefix, size=_PAGE):
            if not revision:
                revision = page.revision
                yield _MAGIC + _frame(_HEADER, json.dumps({**self._header, "revision": revision}).encode())
            batch, size = list[bytes](), 0
            for item in page.items:
                if not item.key.startswith(head):
                    raise DataError(f"etcd answered with {item.key!r}, which is not below {self._prefix}")
                key = item.key.removeprefix(head)
                if _is_left_out(item, key=key):
                    continue
                if len(key) + len(item.value) > LARGEST_WRITTEN:
                    raise DataError(
                        f"failed to archive {key.decode(errors='replace')}: it has {len(item.value)} bytes, and a"
                        f" restore writes {LARGEST_WRITTEN} at most; delete the object"
                    )
                counter.add(key, item.value)
                pair = _PAIR.pack(len(key), len(item.value)) + key + item.value
                if batch and size + len(pair) > _BATCH:
                    yield _frame(_PAIRS, b"".join(batch))
                    batch, size = [], 0
                batch.append(pair)
                size += len(pair)
            if batch:
                yield _frame(_PAIRS, b"".join(batch))
        end = counter.end()
        yield _frame(_END, json.dumps(end).encode())
        self.archived = _archived({**self._header, "revision": revision}, end)


def archive(client: Client, prefix: str, *, header: Mapping[str, Any]) -> Archive:
    """Return an archive of the keys of a prefix, which reads the keys at one revision.

    The archive omits keys with an etcd lease, such as Events and API servers' records about themselves. Such keys
    expire long before most archives are used. The archive also omits kplane's own marks and the API server's address.
    """
    return Archive(client, prefix, header)


class ArchiveReader:
    """Reads an archive chunk by chunk, and keeps at most one incomplete frame in memory between chunks."""

    def __init__(self) -> None:
        self.header: Mapping[str, Any] | None = None
        """Header of the archive; None until the reader has received it."""
        self._buffer = bytearray()
        self._begun = False
        self._counter = _Counter()
        self._end: Mapping[str, Any] | None = None

    def feed(self, chunk: bytes) -> list[Pair]:
        """Read the next chunk, and return the pairs that the chunk completes. Raises ArchiveDamaged."""
        self._buffer += chunk
        if not self._begun:
            if not _MAGIC.startswith(self._buffer[: len(_MAGIC)]):
                raise ArchiveDamaged("this is no archive of a control plane, or one of another format")
            if len(self._buffer) < len(_MAGIC):
                return []
            del self._buffer[: len(_MAGIC)]
            self._begun = True
        pairs: list[Pair] = []
        while (frame := self._next()) is not None:
            self._take(*frame, pairs=pairs)
        return pairs

    def end(self) -> Archived:
        """Return the description of the archive. Raises ArchiveDamaged if it is incomplete or its hash is wrong."""
        if self.header is None or self._end is None or self._buffer:
            raise ArchiveDamaged("the archive is not complete")
        totals = self._counter.end()
        if totals != self._end:
            raise ArchiveDamaged("the archive is damaged: its keys are not those that were saved")
        return _archived(self.header, totals)

    def _next(self) -> tuple[int, bytes] | None:
        if len(self._buffer) < _FRAME.size:
            return None
        kind, length = _FRAME.unpack_from(self._buffer)
        if length > _LARGEST:
            raise ArchiveDamaged(f"the archive is damaged: a frame has {length} bytes")
        if len(self._buffer) < _FRAME.size + length:
            return None
        content = bytes(self._buffer[_FRAME.size : _FRAME.size + length])
        del self._buffer[: _FRAME.size + length]
        return kind, content

    def _take(self, kind: int, content: bytes, *, pairs: list[Pair]) -> None:
        expected = _HEADER if self.header is None else kind
        if self._end is not None or kind != expected or (kind == _HEADER) is not (self.header is None):
            raise ArchiveDamaged("the archive is damaged: a frame is where it cannot be")
        match kind:
            case 1:
                self.header = _document(content)
            case 2:
                for key, value in _pairs(content):
                    self._counter.add(key, value)
                    pairs.append((key, value))
            case 3:
                self._end = _document(content)
            case _:
                raise ArchiveDamaged("the archive is damaged: it has a frame of an unknown kind")


def _is_left_out(item: KeyValue, *, key: bytes) -> bool:
    return bool(item.lease) or is_place(key) or is_mark(key)


def _frame(kind: int, content: bytes) -> bytes:
    return _FRAME.pack(kind, len(content)) + content


def _pairs(content: bytes) -> Iterable[Pair]:
    at = 0
    while at < len(content):
        if at + _PAIR.size > len(content):
            raise ArchiveDamaged("the archive is damaged: a frame ends within a key")
        key, value = _PAIR.unpack_from(content, at)
        start = at + _PAIR.size
        at = start + key + value
        if at > len(content):
            raise ArchiveDamaged("the archive is damaged: a frame ends within a value")
        yield content[start : start + key], content[start + key : at]


def _document(content: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(content)
    except ValueError as error:
        raise ArchiveDamaged("the archive is damaged: a frame is no JSON") from error
    if not isinstance(document, dict):
        raise ArchiveDamaged("the archive is damaged: a frame is no object")
    return document


def _archived(header: Mapping[str, Any], end: Mapping[str, Any]) -> Archived:
    revision = header.get("revision")
    if not isinstance(revision, int):
        raise ArchiveDamaged("the archive is damaged: its header says no revision")
    return Archived(header, revision, Digest(end["keys"], end["sha256"]), end["bytes"])
