"""Storage of backups: a volume, or a bucket of S3-compatible storage."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store
from typing_extensions import override

from kplane.controlplane_operator.backup.archive import Readable, Writable
from kplane.controlplane_operator.errors import BackupFailed, FileRefused

if TYPE_CHECKING:  # obstore has the name in its stubs only
    from obstore.store import S3Config

__all__ = ["ENCRYPTED", "PLAIN", "Bucket", "Hashing", "Storage", "Volume", "digest_of", "read_small"]

_T = TypeVar("_T")

PLAIN: Final = ".db"
ENCRYPTED: Final = ".tar.age"

_NAME: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z(\.db|\.tar\.age)")
_CHUNK: Final = 1 << 20
_LEFT_SECONDS: Final = 7200
"""Age at which the remains of a killed backup are removed. A Job lives half as long."""
_ROOM: Final = 1.1
"""Factor by which the next backup may be larger than the newest."""
_PART_BYTES: Final = 16 << 20
"""Size of a part of an upload. A bucket takes 10,000 parts, so a backup may have up to 156 GiB."""
_TRUST: Final = "SSL_CERT_FILE"
_UPLOADS: Final = 2
"""Maximum number of parts in memory."""
_MOST_FILES: Final = 200_000
"""Maximum number of files in a listing. A user with write access to the storage decides how many files exist."""


class Storage(Protocol):
    """Backups by name. Each method blocks, and raises BackupFailed or OSError."""

    def names(self) -> list[str]:
        """Return the names of all backups, from the oldest to the newest."""
        ...

    def files(self) -> dict[str, str]:
        """Return the names of all files, backups or not, each with a text that changes with the file."""
        ...

    def prepare(self) -> list[str]:
        """Make room for another backup. Returns the names of the backups that were removed."""
        ...

    def writer(self, name: str) -> contextlib.AbstractContextManager[Writable]:
        """Write a backup. The backup exists only if the block ends without an error."""
        ...

    def reader(self, name: str) -> contextlib.AbstractContextManager[Readable]:
        """Open a backup for reading."""
        ...

    def remove(self, name: str) -> None:
        """Delete a backup, and the remains of a process that was killed during the write."""
        ...


class Hashing:
    """Sink that hashes the bytes and passes them on."""

    def __init__(self, target: Writable) -> None:
        self._target = target
        self._hash = hashlib.sha256()
        self.error: Exception | None = None
        """Error of the target. Recorded because the encryption library reports only the text of an error."""

    def write(self, data: bytes, /) -> int:
        """Write all of the data."""
        self._hash.update(data)
        try:
            self._target.write(data)
        except Exception as error:
            self.error = error
            raise
        return len(data)

    def flush(self) -> None:
        """Do nothing: the storage has its own buffer."""

    def hexdigest(self) -> str:
        """Return the SHA-256 of all bytes written."""
        return self._hash.hexdigest()


def digest_of(storage: Storage, name: str) -> str:
    """Read a backup and return its SHA-256. Passes on the errors of the storage."""
    digest = hashlib.sha256()
    with storage.reader(name) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def read_small(storage: Storage, name: str, *, limit: int) -> bytes:
    """Read a whole file. Raises FileRefused if the file has more than `limit` bytes."""
    content = b""
    with storage.reader(name) as file:
        while chunk := file.read(limit + 1 - len(content)):
            content += chunk
            if len(content) > limit:
                raise FileRefused(f"{name} has more than {limit} bytes")
    return content


class Volume(Storage):
    """Storage in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @override
    def names(self) -> list[str]:
        return sorted(path.name for path in self._directory.iterdir() if _NAME.fullmatch(path.name))

    @override
    def files(self) -> dict[str, str]:
        versions = {}
        with os.scandir(self._directory) as entries:
            for entry in _bounded(entries):
                # Another process may delete the file at the same time.
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        versions[entry.name] = f"{status.st_ino} {status.st_mtime_ns} {status.st_size}"
        return versions

    @override
    def prepare(self) -> list[str]:
        for path in self._directory.glob(".*.partial*"):
            if path.stat().st_mtime < time.time() - _LEFT_SECONDS:
                path.unlink(missing_ok=True)
        # Keep the newest backup in any case. Without the removal, a full volume would get no further backup.
        *old, newest = self.names() or [""]
        removed = []
        needed = int((self._directory / newest).stat().st_size * _ROOM) if newest else 0
        while old and self.free() < needed:
            removed.append(old.pop(0))
            self.remove(removed[-1])
        return removed

    def free(self) -> int:
        """Return the number of free bytes."""
        status = os.statvfs(self._directory)
        return status.f_bavail * status.f_frsize

    @override
    @contextlib.contextmanager
    def writer(self, name: str) -> Iterator[Writable]:
        with self.file(name) as partial, partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    @contextlib.contextmanager
    def file(self, name: str) -> Iterator[Path]:
        """Yield the path of a private file, which is renamed to `name` if the block ends without an error."""
        partial = self._directory / f".{name}.partial"
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        try:
            yield partial
            partial.rename(self._directory / name)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise BackupFailed(
                f"failed to write {name}: the volume is full; make it larger (etcd.backup.storageSize)"
            ) from error
        finally:
            partial.unlink(missing_ok=True)
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    @override
    @contextlib.contextmanager
    def reader(self, name: str) -> Iterator[Readable]:
        with (self._directory / name).open("rb") as file:
            yield file

    @override
    def remove(self, name: str) -> None:
        for path in (self._directory / name, self._directory / f".{name}.partial"):
            path.unlink(missing_ok=True)


class Bucket(Storage):
    """Storage in the objects below a prefix of a bucket."""

    def __init__(self, url: str, *, credentials: Path, endpoint: str | None = None, region: str | None = None) -> None:
        """Open `s3://<bucket>[/<prefix>]` at the URL `endpoint`, or at AWS if `endpoint` is None.

        `credentials` is a directory with the files `access-key-id` and `secret-access-key`, and optionally `ca.crt`,
        the CA to trust. Raises BackupFailed for an invalid URL, and OSError if a file is missing.
        """
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.hostname or parts.query or parts.fragment:
            raise BackupFailed(f"{url} is not the URL of a bucket; it must be s3://<bucket>/<prefix>")
        if endpoint is not None and urlsplit(endpoint).scheme != "https":
            raise BackupFailed(f"{endpoint} is not the URL of S3-compatible storage; it must be https://<host>")
        self._url = url
        ca = credentials / "ca.crt"
        with _trusting(ca if ca.is_file() else None), self._errors("open"):
            config: S3Config = {
                "access_key_id": (credentials / "access-key-id").read_text().strip(),
                "secret_access_key": (credentials / "secret-access-key").read_text().strip(),
                "virtual_hosted_style_request": endpoint is None,
            }
            if endpoint is not None:
                config["endpoint"] = endpoint
            if region is not None:
                config["region"] = region
            self._store = S3Store(
                parts.netloc,
                prefix=parts.path.strip("/") or None,
                config=config,
                client_options={"timeout": "2m", "connect_timeout": "20s"},
            )

    @override
    def names(self) -> list[str]:
        with self._errors("list"):
            return sorted(
                item["path"] for page in obstore.list(self._store) for item in page if _NAME.fullmatch(item["path"])
            )

    @override
    def files(self) -> dict[str, str]:
        with self._errors("list"):
            listed = (item for page in obstore.list(self._store) for item in page)
            return {
                item["path"]: f"{item['e_tag']} {item['last_modified']} {item['size']}" for item in _bounded(listed)
            }

    @override
    def prepare(self) -> list[str]:
        return []

    @override
    @contextlib.contextmanager
    def writer(self, name: str) -> Iterator[Writable]:
        with self._errors(f"write {name} to"):
            # Not used as a context manager, which would complete the object after an error too.
            file = obstore.open_writer(self._store, name, buffer_size=_PART_BYTES, max_concurrency=_UPLOADS)
            yield file
            file.close()

    @override
    @contextlib.contextmanager
    def reader(self, name: str) -> Iterator[Readable]:
        with self._errors(f"read {name} from"):
            yield _Ranges(obstore.open_reader(self._store, name, buffer_size=_PART_BYTES))

    @override
    def remove(self, name: str) -> None:
        with self._errors(f"delete {name} from"), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, name)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            # Keep the first paragraph: obstore adds all fields of the error, on many lines.
            cause = str(error).partition("\n\nDebug source")[0]
            raise BackupFailed(f"failed to {what} {self._url}: {cause}") from error


def _bounded(entries: Iterable[_T]) -> Iterator[_T]:
    """Yield the entries of a listing. Raises BackupFailed above the maximum number of files."""
    for number, entry in enumerate(entries):
        if number >= _MOST_FILES:
            raise BackupFailed(f"the storage has more than {_MOST_FILES} files: delete some, or use another prefix")
        yield entry


@contextlib.contextmanager
def _trusting(ca: Path | None) -> Iterator[None]:
    """Make a store that is created within the block trust a CA. obstore offers no parameter for the CA."""
    former = os.environ.get(_TRUST)
    try:
        if ca is not None:
            os.environ[_TRUST] = str(ca)
        yield
    finally:
        if ca is not None and former is None:
            os.environ.pop(_TRUST, None)
        elif ca is not None and former is not None:
            os.environ[_TRUST] = former


class _Ranges:
    """Reader that converts the buffers of obstore to bytes."""

    def __init__(self, file: obstore.ReadableFile) -> None:
        self._file = file

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes, and no bytes at the end."""
        return self._file.read(None if size < 0 else size).to_bytes()
