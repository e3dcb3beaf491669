"""Format of an encrypted backup: an age file of a tar archive with the snapshot and the objects."""

from __future__ import annotations

import json
import os
import tarfile
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import pyrage

from kplane.controlplane_operator.errors import BackupFailed
from kplane.data.snapshot import Snapshot, SnapshotHash

__all__ = ["Readable", "Writable", "decrypt", "encrypt", "identities", "pack", "recipients"]

_DATABASE: Final = "etcd.db"
_OBJECTS: Final = "objects.json"
_BLOCK: Final = tarfile.BLOCKSIZE
_CHUNK: Final = 1 << 20
_MOST_OBJECTS: Final = 1 << 30


class Readable(Protocol):
    """Source of bytes. `read` returns up to `size` bytes, and no bytes at the end."""

    def read(self, size: int = -1, /) -> bytes: ...


class Writable(Protocol):
    """Sink for bytes."""

    def write(self, data: bytes, /) -> int: ...


def recipients(keys: Iterable[str]) -> list[pyrage.x25519.Recipient]:
    """Parse public keys of age. Raises BackupFailed, which names the first invalid key."""
    public_keys = []
    for key in keys:
        try:
            public_keys.append(pyrage.x25519.Recipient.from_str(key))
        except pyrage.RecipientError as error:
            raise BackupFailed(f"failed to read recipient {key}: {error}; use a public key of age-keygen") from error
    return public_keys


def identities(text: str) -> list[pyrage.x25519.Identity]:
    """Parse the private keys in a file of age-keygen. Raises BackupFailed; its message never contains the text."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    try:
        keys = [pyrage.x25519.Identity.from_str(line) for line in lines]
    except pyrage.IdentityError as error:
        raise BackupFailed(f"failed to read the private key: {error}; give the file of age-keygen") from error
    if not keys:
        raise BackupFailed("failed to read the private key: there is none; give the file of age-keygen")
    return keys


async def pack(snapshot: Snapshot, objects: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    """Build the archive. The snapshot comes first, so that the keys are read after the data that need them."""
    yield _header(_DATABASE, size=snapshot.size)
    async for chunk in snapshot.chunks():
        yield chunk
    yield _padding(snapshot.size)
    items = [item async for item in objects]
    content = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1).encode()
    yield _header(_OBJECTS, size=len(content))
    yield content
    yield _padding(len(content)) + bytes(2 * _BLOCK)


def encrypt(source: Readable, target: Writable, *, to: Sequence[pyrage.x25519.Recipient]) -> None:
    """Encrypt a stream in pieces of 64 KiB."""
    pyrage.encrypt_io(source, target, to)


def decrypt(source: Readable, *, keys: Sequence[pyrage.x25519.Identity], into: Path) -> bytes:
    """Write the snapshot of a backup to a file, and return its objects as JSON.

    Raises BackupFailed if the backup is damaged or for another key. The file may be incomplete then.
    """
    reading, writing = os.pipe()
    failed: list[Exception] = []

    def run() -> None:
        with os.fdopen(writing, "wb") as pipe:
            try:
                pyrage.decrypt_io(source, pipe, keys)
            except BrokenPipeError:
                pass  # the reader has failed, and reports that the content is no archive
            except Exception as error:  # noqa: BLE001 - reported below, in the thread of the caller
                failed.append(error)

    thread = threading.Thread(target=run, name="decrypt a backup")
    thread.start()
    try:
        with os.fdopen(reading, "rb") as pipe:
            objects = _unpack(pipe, into=into)
            # age authenticates the end of the stream in the last piece, so read to the end.
            while pipe.read(_CHUNK):
                pass
    except (tarfile.TarError, EOFError) as error:
        thread.join()
        raise BackupFailed(f"failed to open the backup: {failed[0] if failed else error}") from error
    finally:
        thread.join()
    if failed:
        raise BackupFailed(f"failed to open the backup: {failed[0]}") from failed[0]
    return objects


def _unpack(pipe: BinaryIO, *, into: Path) -> bytes:
    contents: dict[str, bytes | None] = {}
    with tarfile.open(fileobj=pipe, mode="r|") as archive:
        for entry in archive:
            content = archive.extractfile(entry)
            if content is None or entry.name not in {_DATABASE, _OBJECTS}:
                continue
            if entry.name == _OBJECTS:
                if entry.size > _MOST_OBJECTS:
                    raise BackupFailed(f"failed to open the backup: {_OBJECTS} has {entry.size} bytes")
                contents[_OBJECTS] = content.read()
                continue
            check = SnapshotHash(entry.size)
            with into.open("wb") as file:
                while chunk := content.read(_CHUNK):
                    check.update(chunk)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            check.check()
            contents[_DATABASE] = None
    objects = contents.get(_OBJECTS)
    if objects is None or _DATABASE not in contents:
        raise BackupFailed("failed to open the backup: it has no snapshot or no objects")
    return objects


def _header(name: str, *, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    # A database may have more than 8 GiB, the limit of the other formats.
    return entry.tobuf(tarfile.GNU_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)
