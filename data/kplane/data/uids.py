"""The uids of stored objects, and the types of Secrets, read from the bytes that an API server keeps in etcd."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Final

from kplane.data.errors import ValueEncrypted, ValueUnreadable

__all__ = ["secret_type_of", "uid_of"]

_ENVELOPE: Final = b"k8s\0"
"""What a protobuf value begins with; a message `Unknown` of k8s.io/apimachinery follows."""
_RAW: Final = 2
"""Field of `Unknown`: the object."""
_METADATA: Final = 1
"""Field of each stored object: its ObjectMeta."""
_UID: Final = 5
"""Field of ObjectMeta."""
_SECRET_TYPE: Final = 3
"""Field of Secret."""
_ENCRYPTED: Final = b"k8s:enc:"
"""What a value begins with that an API server encrypted."""
_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5


def uid_of(value: bytes) -> str | None:
    """Return the uid of a stored object; None if it has none, such as a range of ports.

    Raises ValueUnreadable, ValueEncrypted among them.
    """
    with _reading(value):
        if value.startswith(_ENVELOPE):
            return _field(_field(_raw(value), _METADATA), _UID).decode() or None
        uid = (json.loads(value).get("metadata") or {}).get("uid")
        return str(uid) if uid else None


def secret_type_of(value: bytes) -> str:
    """Return the type of a stored Secret; empty if it has none. Raises as `uid_of` does."""
    with _reading(value):
        if value.startswith(_ENVELOPE):
            return _field(_raw(value), _SECRET_TYPE).decode()
        return str(json.loads(value).get("type") or "")


@contextlib.contextmanager
def _reading(value: bytes) -> Iterator[None]:
    if value.startswith(_ENCRYPTED):
        raise ValueEncrypted("a value is encrypted at rest")
    try:
        yield
    except (ValueError, IndexError, AttributeError, RecursionError) as error:
        raise ValueUnreadable(f"a value of {len(value)} bytes cannot be read: {error}") from None


def _raw(value: bytes) -> bytes:
    return _field(value[len(_ENVELOPE) :], _RAW)


def _field(message: bytes, number: int) -> bytes:
    """Return a field that is a message or a string, at its first place; empty if the message lacks it."""
    return next((content for found, content in _fields(message) if found == number), b"")


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"protobuf has no wire type {kind} here")
        if at + size > len(message):
            raise ValueError("a field ends after its message")
        yield number, message[at : at + size] if kind == _BYTES else b""
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift >= 64:
            raise ValueError("a number has more than 64 bits")
