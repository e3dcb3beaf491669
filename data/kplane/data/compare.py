"""Comparison of prefixes by the number of keys and a hash."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from kplane.data import prefix as prefixes
from kplane.data.client import Client
from kplane.data.template import is_mark

__all__ = ["Digest", "digest"]


@dataclass(frozen=True, slots=True)
class Digest:
    """Number of keys, and the SHA-256 of all keys without their prefix and all values, in order."""

    count: int
    sha256: str


async def digest(client: Client, prefix: str) -> Digest:
    """Return the digest of a prefix at one revision; equal keys and values give equal digests below any prefix.

    kplane's own marks do not count. Raises DataError.
    """
    head = prefixes.checked(prefix)
    hashed, count = hashlib.sha256(), 0
    async for page in client.pages(prefix):
        for item in page.items:
            key = item.key.removeprefix(head)
            if is_mark(key):
                continue
            for part in (key, item.value):
                # The length goes first, so that two different lists of keys and values never hash the same bytes.
                hashed.update(len(part).to_bytes(8, "big"))
                hashed.update(part)
            count += 1
    return Digest(count, hashed.hexdigest())
