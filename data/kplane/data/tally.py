"""Keys of a prefix with the hashes of their values, updated with each change: a comparison needs no read of etcd."""

from __future__ import annotations

import hashlib

from typing_extensions import override

from kplane.data.compare import Digest

__all__ = ["Tally"]


class Tally:
    """Map of keys, without their prefix, to the SHA-256 of their values."""

    def __init__(self) -> None:
        self._hashes: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._hashes)

    def has(self, key: bytes, value: bytes) -> bool:
        """Return whether a key has this value."""
        existing = self._hashes.get(key)
        return existing is not None and existing == hashlib.sha256(value).digest()

    def put(self, key: bytes, value: bytes) -> None:
        """Record the value of a key."""
        self._hashes[key] = hashlib.sha256(value).digest()

    def delete(self, key: bytes) -> None:
        """Record that a key does not exist."""
        self._hashes.pop(key, None)

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tally) and self._hashes == other._hashes

    __hash__ = None  # type: ignore[assignment] # as of all that changes

    def copy(self) -> Tally:
        """Return an independent copy."""
        copied = Tally()
        copied._hashes = dict(self._hashes)
        return copied

    def keys(self) -> set[bytes]:
        """Return the keys, without their prefix."""
        return set(self._hashes)

    def digest(self) -> Digest:
        """Return the number of keys, and the SHA-256 of keys and hashes in order: equal for equal keys and values."""
        hashed = hashlib.sha256()
        for key in sorted(self._hashes):
            # The length goes first, so that two different lists of keys and values never hash the same bytes.
            hashed.update(len(key).to_bytes(8, "big") + key + self._hashes[key])
        return Digest(len(self._hashes), hashed.hexdigest())
