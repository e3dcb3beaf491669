"""The uid of a stored object, from protobuf and JSON as an API server writes them."""

from __future__ import annotations

import contextlib
import datetime as dt
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplane.data import ValueEncrypted, ValueUnreadable, uid_of
from kplane.data.uids import creation_time_like, creation_time_of, secret_type_of

UID = "0c6d3b8e-1f5e-4f0e-9a8b-2d1c3e4f5a6b"
_OTHER = "ffffffff-1f5e-4f0e-9a8b-2d1c3e4f5a6b"


def varint(number: int) -> bytes:
    digits = [number >> shift & 0x7F for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([*(digit | 0x80 for digit in digits[:-1]), digits[-1]])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def protobuf(metadata: bytes, rest: bytes = b"") -> bytes:
    """Return an object as an API server encodes it: the kind, then the object, then two empty fields."""
    kind = field(1, field(1, b"v1") + field(2, b"Secret"))
    return b"k8s\0" + kind + field(2, field(1, metadata) + rest) + field(3, b"") + field(4, b"")


_OTHERS = st.one_of(
    st.builds(field, st.integers(6, 600), st.binary(max_size=300)),
    st.builds(lambda number, value: varint(number << 3) + varint(value), st.integers(6, 99), st.integers(0, 2**64 - 1)),
    st.builds(
        lambda number, value: varint(number << 3 | 1) + value, st.integers(6, 99), st.binary(min_size=8, max_size=8)
    ),
    st.builds(
        lambda number, value: varint(number << 3 | 5) + value, st.integers(6, 99), st.binary(min_size=4, max_size=4)
    ),
)


_OTHERS_THAN_TIMES = _OTHERS.filter(lambda written: not written.startswith(b"\x42"))


class _Moment:
    """A time outside the range of `datetime`."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds

    def timestamp(self) -> float:
        return float(self._seconds)


@given(uid=st.uuids().map(str), before=st.lists(_OTHERS), after=st.lists(_OTHERS), rest=st.lists(_OTHERS))
def test_uid_of_finds_uid_among_other_fields(
    uid: str, before: list[bytes], after: list[bytes], rest: list[bytes]
) -> None:
    metadata = b"".join([*before, field(5, uid.encode()), *after])
    assert uid_of(protobuf(metadata, b"".join(rest))) == uid


def test_uid_of_ignores_uids_outside_metadata_of_object() -> None:
    owner = field(13, field(1, b"v1") + field(4, _OTHER.encode()))
    assert uid_of(protobuf(field(5, UID.encode()) + owner, field(5, _OTHER.encode()))) == UID
    assert uid_of(protobuf(owner)) is None
    document = {"metadata": {"uid": UID, "ownerReferences": [{"uid": _OTHER}]}, "uid": _OTHER}
    assert uid_of(json.dumps(document).encode()) == UID
    assert uid_of(b'{"metadata": {"name": "a"}}') is None


def test_secret_type_of_ignores_type_in_secret_data() -> None:
    data = field(2, field(1, b"type") + field(2, b"other"))
    assert secret_type_of(protobuf(b"", data + field(3, b"Opaque"))) == "Opaque"
    assert secret_type_of(protobuf(b"", data)) == ""
    assert secret_type_of(b'{"data": {"type": "b3RoZXI="}, "type": "Opaque"}') == "Opaque"
    with pytest.raises(ValueEncrypted):
        secret_type_of(b"k8s:enc:secretbox:v1:kplane:\x01\x02")


@pytest.mark.parametrize(
    "value",
    [
        b"k8s:enc:secretbox:v1:kplane:\x01\x02",
        b"",
        b"[1]",
        b"[" * 100_000,
        b"nothing",
        b"k8s\0\x12\x05\x0a",
        b"k8s\0\x07",
        b"k8s\0" + b"\xff" * 12,
    ],
)
def test_uid_of_raises_value_unreadable_for_damaged_value(value: bytes) -> None:
    with pytest.raises(ValueUnreadable):
        uid_of(value)


@given(st.binary(max_size=80))
def test_uid_of_raises_only_value_unreadable(value: bytes) -> None:
    for candidate in (value, b"k8s\0" + value, protobuf(value)):
        with contextlib.suppress(ValueUnreadable):
            uid_of(candidate)


def timestamp(seconds: int) -> bytes:
    return b"\x08" + varint(seconds) + b"\x10\x00"


@given(
    seconds=st.integers(2**28, 2**35 - 1),
    later=st.integers(2**28, 2**35 - 1),
    before=st.lists(_OTHERS_THAN_TIMES),
    after=st.lists(_OTHERS_THAN_TIMES),
)
def test_creation_time_like_keeps_encoding_of_creation_time(
    seconds: int, later: int, before: list[bytes], after: list[bytes]
) -> None:
    metadata = [*before, field(8, timestamp(seconds)), *after]
    encoded_time = creation_time_of(protobuf(b"".join(metadata)))
    assert encoded_time == field(8, timestamp(seconds))
    assert creation_time_like(encoded_time, _Moment(later)) == field(8, timestamp(later))  # type: ignore[arg-type]


def test_creation_time_of_json_is_read_from_metadata() -> None:
    document = {"metadata": {"creationTimestamp": "2026-11-27T17:00:00Z"}, "spec": {"time": "2020-01-01T00:00:00Z"}}
    encoded_time = creation_time_of(json.dumps(document).encode())
    assert encoded_time == b'"2026-11-27T17:00:00Z"'
    later = dt.datetime(2027, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    assert creation_time_like(encoded_time, later) == b'"2027-01-02T03:04:05Z"'


@pytest.mark.parametrize(
    "value",
    [
        protobuf(field(5, UID.encode())),
        protobuf(field(8, b"")),
        protobuf(field(8, b"\x08\x01\x10\x00")),
        b'{"metadata": {"creationTimestamp": null}}',
        b'{"spec": {}}',
    ],
)
def test_creation_time_of_returns_none_without_valid_time(value: bytes) -> None:
    assert creation_time_of(value) is None
