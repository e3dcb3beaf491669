"""Key prefixes. A slash at the end separates `/clusters/a/` from `/clusters/aa/` and `/clusters/a-b/`."""

from __future__ import annotations

from kplane.data.errors import InvalidPrefix

__all__ = ["checked", "range_end"]


def checked(prefix: str) -> bytes:
    """Return the prefix in bytes, as etcd expects it.

    Raises InvalidPrefix unless the prefix has the form `/<segment>/...`: non-empty segments, and a slash at the end.
    """
    segments = prefix.split("/")
    if len(segments) < 3 or segments[0] or segments[-1] or not all(segments[1:-1]) or "\0" in prefix:
        raise InvalidPrefix(f"{prefix!r} is not a prefix; it must begin and end with a slash and have a name between")
    return prefix.encode()


def range_end(prefix: bytes) -> bytes:
    """Return the first key after all keys that begin with a prefix.

    Raises InvalidPrefix for an empty prefix and for a prefix of bytes 0xff only, because no such key exists.
    """
    kept = prefix.rstrip(b"\xff")
    if not kept:
        raise InvalidPrefix(f"no key comes after all keys that begin with {prefix!r}")
    return kept[:-1] + bytes([kept[-1] + 1])
