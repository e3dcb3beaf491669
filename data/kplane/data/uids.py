"""The uids of stored objects, read from the bytes that an API server keeps in etcd."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from kplane.data.errors import ValueUnreadable

__all__ = ["uid_of"]

_ENVELOPE: Final = b"k8s\0"
"""What a protobuf value begins with; a message `Unknown` of k8s.io/apimachinery follows."""
_RAW: Final = 2
"""Field of `Unknown`: the object."""
_METADATA: Final = 1
"""Field of each stored object: its ObjectMeta."""
_UID: Final = 5
"""Field of ObjectMeta."""
_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5


def uid_of(value: bytes) -> str | None:
    """Return the uid of a stored object; None if it has none, such as a range of ports. Raises ValueUnreadable."""
    try:
        return _of_protobuf(value[len(_ENVELOPE) :]) if value.startswith(_ENVELOPE) else _of_json(value)
    except (ValueError, IndexError, AttributeError) as error:
        raise ValueUnreadable(f"a value of {len(value)} bytes cannot be read: {error}") from None


def _of_json(value: bytes) -> str | None:
    uid = (json.loads(value).get("metadata") or {}).get("uid")
    return str(uid) if uid else None


def _of_protobuf(unknown: bytes) -> str | None:
    uid = _field(_field(_field(unknown, _RAW), _METADATA), _UID)
    return uid.decode() or None


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
