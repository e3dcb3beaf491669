"""Storage of small snapshots in the management cluster, as a few Secrets in the namespace of the operator."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import contextlib
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, Final, TypeVar

from typing_extensions import override

from kplane.api.names import (
    SNAPSHOT_BYTES_ANNOTATION,
    SNAPSHOT_FILE_ANNOTATION,
    SNAPSHOT_FILE_LABEL,
    snapshot_file_label,
    snapshot_secret_name,
)
from kplane.controlplane_operator.backup.archive import Readable, Writable
from kplane.controlplane_operator.backup.storage import Storage
from kplane.controlplane_operator.errors import BackupFailed
from kplane.controlplane_operator.watch.cache import Object
from kplane.provider import Client, NotFound, ProviderError
from kplane.provider.client.resources import SECRETS

__all__ = ["SecretStorage"]

_T = TypeVar("_T")

_PIECE_BYTES: Final = 512 << 10
"""Maximum size of the data in a Secret. etcd accepts requests of up to 1.5 MiB."""
_MOST_PIECES: Final = 8
_LARGEST_BYTES: Final = _MOST_PIECES * _PIECE_BYTES
_MOST_BYTES: Final = 128 << 20
"""Maximum total size of all files. etcd of a management cluster has 2 GiB by default, and keeps all of it in memory."""
_CALL_SECONDS: Final = 60.0
"""Timeout of a call from a thread, longer than the timeout of the client."""
_ADVICE: Final = "set etcd.backup.bucket, or a volume with etcd.backup.accessMode ReadWriteMany"
_DATA: Final = "data"
_PIECES: Final = "pieces"


class SecretStorage(Storage):
    """Storage in the Secrets of a namespace that have the label of a file.

    Use the storage only in threads other than that of the client's loop. The first
    Secret of a file is written last, and has the number of Secrets. Without the first Secret, the file does not exist.
    """

    def __init__(self, client: Client, *, namespace: str) -> None:
        """Create the storage in the event loop of the client."""
        self._client = client
        self._namespace = namespace
        self._loop = asyncio.get_running_loop()

    @override
    def names(self) -> list[str]:
        first = [secret["metadata"] for secret in self._list() if secret["metadata"]["name"].endswith("-0")]
        return sorted(_annotation(metadata, SNAPSHOT_FILE_ANNOTATION) for metadata in first)

    @override
    def files(self) -> dict[str, str]:
        # The Secrets are lost together with the objects that refer to them, so an import would never find a file.
        return {}

    @override
    def prepare(self) -> list[str]:
        return []

    @override
    @contextlib.contextmanager
    def writer(self, name: str) -> Iterator[Writable]:
        self._require_room(1)
        buffer = _Bounded(name)
        try:
            yield buffer
            self._write(name, bytes(buffer.content))
        except BaseException:
            with contextlib.suppress(BackupFailed):
                self.remove(name)
            raise

    @override
    @contextlib.contextmanager
    def reader(self, name: str) -> Iterator[Readable]:
        yield _Pieces(self._read(name))

    @override
    def remove(self, name: str) -> None:
        # Delete the first Secret first: after a crash, the remaining Secrets are no file.
        for number in range(_MOST_PIECES):
            secret = snapshot_secret_name(name, number=number)
            with contextlib.suppress(NotFound):
                self._call(self._client.delete(SECRETS, secret, namespace=self._namespace))

    def _require_room(self, size: int) -> None:
        used = sum(int(_annotation(secret["metadata"], SNAPSHOT_BYTES_ANNOTATION) or 0) for secret in self._list())
        if used + size > _MOST_BYTES:
            raise BackupFailed(
                f"all snapshots in Secrets may have {_MOST_BYTES >> 20} MiB, and have {used >> 20} MiB already: delete"
                f" snapshots, or {_ADVICE}"
            )

    def _write(self, name: str, content: bytes) -> None:
        self._require_room(len(content))
        pieces = [content[start : start + _PIECE_BYTES] for start in range(0, len(content), _PIECE_BYTES)]
        for number, piece in reversed(list(enumerate(pieces))):
            metadata = {
                "name": snapshot_secret_name(name, number=number),
                "labels": {SNAPSHOT_FILE_LABEL: snapshot_file_label(name)},
                "annotations": {SNAPSHOT_FILE_ANNOTATION: name, SNAPSHOT_BYTES_ANNOTATION: str(len(piece))},
            }
            data = {_DATA: _encoded(piece), _PIECES: _encoded(str(len(pieces)).encode())}
            body = {"metadata": metadata, "type": "Opaque", "immutable": True, "data": data}
            self._call(self._client.create(SECRETS, body, namespace=self._namespace))

    def _read(self, name: str) -> Iterator[bytes]:
        first = self._get(name, 0)
        yield _value(first, _DATA)
        for number in range(1, int(_value(first, _PIECES))):
            yield _value(self._get(name, number), _DATA)

    def _get(self, name: str, number: int) -> Object:
        secret = snapshot_secret_name(name, number=number)
        try:
            return self._call(self._client.get(SECRETS, secret, namespace=self._namespace))
        except NotFound as error:
            raise BackupFailed(f"failed to read {name}: Secret {self._namespace}/{secret} is gone") from error

    def _list(self) -> list[Object]:
        listing = self._client.list(
            SECRETS, namespace=self._namespace, label_selector=SNAPSHOT_FILE_LABEL, metadata_only=True
        )
        return self._call(listing).items

    def _call(self, call: Coroutine[Any, Any, _T]) -> _T:
        """Run a call of the client in its loop and wait in this thread. Raises NotFound and BackupFailed."""
        try:
            running = asyncio.run_coroutine_threadsafe(call, self._loop)
        except RuntimeError as error:
            call.close()
            raise BackupFailed("the operator ends") from error
        try:
            return running.result(_CALL_SECONDS)
        except NotFound:
            raise
        except concurrent.futures.CancelledError as error:
            raise BackupFailed("the operator ends") from error
        except (ProviderError, TimeoutError) as error:
            running.cancel()
            raise BackupFailed(f"the management cluster failed: {str(error) or 'an answer took too long'}") from error


class _Bounded:
    """Buffer for the content of a file. Raises BackupFailed above the maximum size."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.content = bytearray()

    def write(self, data: bytes, /) -> int:
        if len(self.content) + len(data) > _LARGEST_BYTES:
            raise BackupFailed(
                f"{self._name} has more than {_LARGEST_BYTES >> 20} MiB, too much for Secrets: {_ADVICE}"
            )
        self.content += data
        return len(data)


class _Pieces:
    """Reader that joins the pieces of a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int = -1, /) -> bytes:
        if size < 0:
            data, self._rest = self._rest + b"".join(self._pieces), b""
            return data
        while not self._rest and (piece := next(self._pieces, None)) is not None:
            self._rest = piece
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def _annotation(metadata: Mapping[str, Any], name: str) -> str:
    value: str = (metadata.get("annotations") or {}).get(name, "")
    return value


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _value(secret: Object, key: str) -> bytes:
    return base64.b64decode((secret.get("data") or {}).get(key, ""))
