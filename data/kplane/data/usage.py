"""Measures what a prefix takes in etcd, by small steps that leave the etcd to others in between."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from kplane.data.client import Client
from kplane.data.errors import TimedOut, TooLarge
from kplane.data.walk import Walk

__all__ = ["Usage", "estimate", "usage"]

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
    found = Usage(0, 0)
    async for each in _measured(client, prefix, share=share):
        found = each
    return found


async def estimate(client: Client, prefix: str, *, seconds: float) -> Usage:
    """Count the keys of a prefix, and measure them for so long. What is left then counts like what was measured.

    Raises DataError.
    """
    keys, ends, found = await client.count(prefix), time.monotonic() + seconds, Usage(0, 0)
    async with contextlib.aclosing(_measured(client, prefix, share=1.0)) as measured:
        async for each in measured:
            found = each
            if time.monotonic() > ends and found.keys < keys:
                return Usage(keys, found.bytes * keys // found.keys)
    return found


async def _measured(client: Client, prefix: str, *, share: float) -> AsyncGenerator[Usage]:
    """Measure step by step, and give what was found so far."""
    walk, found = Walk(prefix, first=_FIRST, most=_MOST, size=_BYTES), Usage(0, 0)
    while not walk.ended:
        began = time.monotonic()
        try:
            step = await client.weigh(walk)
        except (TooLarge, TimedOut):
            if not walk.halve():
                raise
        else:
            found = Usage(found.keys + step.keys, found.bytes + step.size)
            yield found
        await asyncio.sleep((time.monotonic() - began) * (1 / share - 1))
