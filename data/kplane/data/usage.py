"""Measures what a prefix takes in etcd, by small steps that leave the etcd to others in between."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
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
    """Count the keys of a prefix, and measure them for this number of seconds. The rest is estimated.

    Each key of the rest counts as the median of those measured: a few large objects come first in their namespace, and
    a mean would give their size to all others. The sum is at most what the whole database uses. Raises DataError.
    """
    keys, ends, found = await client.count(prefix), time.monotonic() + seconds, Usage(0, 0)
    steps: list[Usage] = []
    async with contextlib.aclosing(_measured(client, prefix, share=1.0)) as measured:
        async for each in measured:
            steps.append(Usage(each.keys - found.keys, each.bytes - found.bytes))
            found = each
            if time.monotonic() > ends and found.keys < keys:
                estimated = found.bytes + round(_median_size(steps) * (keys - found.keys))
                return Usage(keys, max(found.bytes, min(estimated, await client.size_in_use())))
    return found


def _median_size(steps: Sequence[Usage]) -> float:
    """Return the median of the bytes of a key. All keys of a step count as their mean."""
    left = sum(step.keys for step in steps) / 2
    for step in sorted((step for step in steps if step.keys), key=lambda step: step.bytes / step.keys):
        left -= step.keys
        if left <= 0:
            return step.bytes / step.keys
    return 0.0


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
