"""Measures what a prefix takes in etcd, by small steps that leave the etcd to others in between."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from kplane.data import prefix as prefixes
from kplane.data.client import Client
from kplane.data.errors import TimedOut, TooLarge

__all__ = ["Usage", "usage"]

_FIRST: Final = 32
_MOST: Final = 256
"""Keys in one step: an answer is a few hundred kilobytes where values are of the usual size."""
_BYTES: Final = 1 << 18
"""What a step is to weigh, where keys of one size follow each other."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Keys of a prefix, and the bytes of these keys and their present values."""

    keys: int
    bytes: int


async def usage(client: Client, prefix: str, *, share: float) -> Usage:
    """Measure a prefix, and spend at most this share of the time on calls: after each it waits.

    Not at one revision: what is written meanwhile counts or not. Raises DataError.
    """
    start: bytes | None = prefixes.checked(prefix)
    end, limit, keys, size = prefixes.range_end(prefixes.checked(prefix)), _FIRST, 0, 0
    while start is not None:
        began = time.monotonic()
        try:
            step = await client.weigh(start, end, limit=limit)
        except (TooLarge, TimedOut):
            if limit == 1:
                raise
            limit //= 2
        else:
            keys, size, start = keys + step.keys, size + step.size, step.rest
            limit = max(1, min(_MOST, 2 * limit, _BYTES * step.keys // step.size))
        await asyncio.sleep((time.monotonic() - began) * (1 / share - 1))
    return Usage(keys, size)
