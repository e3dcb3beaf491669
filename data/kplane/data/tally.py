"""The keys of a prefix with the hashes of their values, kept up with each change: so a comparison reads nothing."""

from __future__ import annotations

import hashlib

from typing_extensions import override

from kplane.data.compare import Digest

__all__ = ["Tally"]


class Tally:
    """Knows keys without their prefix, and the SHA-256 of each value."""

    def __init__(self) -> None:
        self._hashes: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._hashes)

    def has(self, key: bytes, value: bytes) -> bool:
        """Tell whether a key has this value."""
        known = self._hashes.get(key)
        return known is not None and known == hashlib.sha256(value).digest()

    def put(self, key: bytes, value: bytes) -> None:
        """Note what a key has."""
        self._hashes[key] = hashlib.sha256(value).digest()

    def delete(self, key: bytes) -> None:
        """Note that a key is not there."""
        self._hashes.pop(key, None)

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tally) and self._hashes == other._hashes

    __hash__ = None  # type: ignore[assignment] # as of all that changes

    def copy(self) -> Tally:
        """Return one that stays as it is now."""
        copied = Tally()
        copied._hashes = dict(self._hashes)
        return copied

    def keys(self) -> set[bytes]:
        """Return the keys."""
        return set(self._hashes)

    def digest(self) -> Digest:
        """Return the number of keys, and the SHA-256 of keys and hashes in order: equal for equal keys and values."""
        hashed = hashlib.sha256()
        for key in sorted(self._hashes):
            # With its length, so that no two lists of keys and values are the same bytes.
            hashed.update(len(key).to_bytes(8, "big") + key + self._hashes[key])
        return Digest(len(self._hashes), hashed.hexdigest())
