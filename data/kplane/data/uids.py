"""Uids, creation times and owners of stored objects, and types of Secrets, read from an API server's stored bytes."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from typing import Final

from kplane.data.errors import ValueEncrypted, ValueUnreadable

__all__ = ["creation_time_like", "creation_time_of", "secret_type_of", "uid_of", "without_owners"]

_ENVELOPE: Final = b"k8s\0"
"""First bytes of a protobuf value; a message `Unknown` of k8s.io/apimachinery follows."""
_RAW: Final = 2
"""Number of the field of `Unknown` with the object."""
_METADATA: Final = 1
"""Number of the field of each stored object with its ObjectMeta."""
_UID: Final = 5
"""Number of the field of ObjectMeta with the uid."""
_CREATION_TIME: Final = 8
"""Number of the field of ObjectMeta with the creation time: a message Timestamp with seconds and no nanoseconds."""
_CREATION_TIME_FORM: Final = re.compile(rb"\x42\x08\x08[\x80-\xff]{4}[\x00-\x7f]\x10\x00")
"""Encoded field `_CREATION_TIME` with its tag. The seconds of the years 1978 to 3058 take five bytes."""
_JSON_TIME_FORM: Final = re.compile(rb'"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"')
_OWNER_REFERENCES: Final = 13
"""Number of the repeated field of ObjectMeta with messages OwnerReference."""
_OWNER_UID: Final = 4
"""Number of the field of OwnerReference with the uid of the owner."""
_SECRET_TYPE: Final = 3
"""Number of the field of Secret with its type."""
_ENCRYPTED: Final = b"k8s:enc:"
"""First bytes of a value that an API server encrypted."""
_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5


def uid_of(value: bytes) -> str | None:
    """Return the uid of a stored object; None for an object without a uid, such as a range of ports.

    Raises ValueUnreadable, and its subclass ValueEncrypted.
    """
    with _reading(value):
        if value.startswith(_ENVELOPE):
            return _field(_field(_raw(value), _METADATA), _UID).decode() or None
        uid = (json.loads(value).get("metadata") or {}).get("uid")
        return str(uid) if uid else None


def creation_time_of(value: bytes) -> bytes | None:
    """Return the encoded creation time of a stored object, exactly as in its bytes; None for an object without it.

    Raises ValueUnreadable, and its subclass ValueEncrypted.
    """
    with _reading(value):
        if value.startswith(_ENVELOPE):
            metadata = _field(_raw(value), _METADATA)
            spelled = next((whole for number, _, whole in _fields(metadata) if number == _CREATION_TIME), b"")
            return spelled if _CREATION_TIME_FORM.fullmatch(spelled) else None
        created = (json.loads(value).get("metadata") or {}).get("creationTimestamp")
        spelled = f'"{created}"'.encode()
        return spelled if _JSON_TIME_FORM.fullmatch(spelled) else None


def creation_time_like(spelled: bytes, time: datetime) -> bytes:
    """Encode a time in the format and length of `spelled`, which is a result of `creation_time_of`."""
    if spelled.startswith(b'"'):
        return time.astimezone(UTC).strftime('"%Y-%m-%dT%H:%M:%SZ"').encode()
    return spelled[:3] + _encoded(int(time.timestamp())) + spelled[-2:]


def secret_type_of(value: bytes) -> str:
    """Return the type of a stored Secret; empty if the Secret has none. Raises as `uid_of` does."""
    with _reading(value):
        if value.startswith(_ENVELOPE):
            return _field(_raw(value), _SECRET_TYPE).decode()
        return str(json.loads(value).get("type") or "")


def without_owners(value: bytes, uids: Collection[bytes]) -> tuple[bytes, int]:
    """Remove the owner references to these uids from a stored object. Return the object and the number of removals.

    Raises ValueUnreadable, and its subclass ValueEncrypted.
    """
    with _reading(value):
        if not value.startswith(_ENVELOPE):
            return _json_without_owners(value, uids)
        removed = 0

        def kept(reference: bytes) -> bytes | None:
            nonlocal removed
            if _field(reference, _OWNER_UID) not in uids:
                return reference
            removed += 1
            return None

        def metadata(message: bytes) -> bytes:
            return _replaced(message, _OWNER_REFERENCES, kept)

        def stored(message: bytes) -> bytes:
            return _replaced(message, _METADATA, metadata)

        return _ENVELOPE + _replaced(value[len(_ENVELOPE) :], _RAW, stored), removed


def _json_without_owners(value: bytes, uids: Collection[bytes]) -> tuple[bytes, int]:
    document = json.loads(value)
    metadata = document.get("metadata") or {}
    references = metadata.get("ownerReferences") or []
    kept = [reference for reference in references if str(reference.get("uid")).encode() not in uids]
    if len(kept) == len(references):
        return value, 0
    metadata["ownerReferences"] = kept
    if not kept:
        del metadata["ownerReferences"]
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode(), len(references) - len(kept)


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
    """Return the first occurrence of a field that is a message or a string; empty if the message lacks the field."""
    return next((content for field, content, _ in _fields(message) if field == number), b"")


def _replaced(message: bytes, number: int, replace: Callable[[bytes], bytes | None]) -> bytes:
    """Replace the content of each occurrence of a field; `replace` returns None to remove the occurrence."""
    pieces = list[bytes]()
    for field, content, whole in _fields(message):
        replaced = replace(content) if field == number else content
        if replaced is None:
            continue
        if replaced == content:
            pieces.append(whole)
        else:
            pieces.append(_encoded(number << 3 | _BYTES) + _encoded(len(replaced)) + replaced)
    return b"".join(pieces)


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the number of each field, its content if it is a message or a string, and its bytes with the tag."""
    at = 0
    while at < len(message):
        start = at
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
            yield number, b"", message[start:at]
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"protobuf has no wire type {kind} here")
        if at + size > len(message):
            raise ValueError("a field ends after its message")
        content = message[at : at + size] if kind == _BYTES else b""
        at += size
        yield number, content, message[start:at]


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


def _encoded(number: int) -> bytes:
    digits = bytearray()
    while number >= 0x80:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])
