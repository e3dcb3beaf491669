"""Measurement of the keys and bytes of a prefix, in small reads that leave etcd free for other clients in between."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Final

from kplane.data.client import Client
from kplane.data.errors import TimedOut, TooLarge
from kplane.data.walk import Walk

__all__ = ["Usage", "estimate", "usage"]

_FIRST: Final = 32
_MOST: Final = 256
"""Maximum number of keys per read: the answer has a few hundred kilobytes if values have their usual size."""
_BYTES: Final = 1 << 18
"""Target size of an answer, in bytes; the number of keys per read adapts to the size of the last answer."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Number of keys of a prefix, and the bytes of these keys and their current values."""

    keys: int
    bytes: int
    largest: int = field(default=0, compare=False)
    """Bytes of the largest key and value that were read."""


async def usage(client: Client, prefix: str, *, share: float) -> Usage:
    """Measure a prefix, and spend at most this share of the time on calls.

    `share` is above 0 and at most 1. The function sleeps after each call. The reads have different revisions, so a
    concurrent write may count or not. Raises DataError.
    """
    measured = Usage(0, 0)
    async for totals in _measured(client, prefix, share=share):
        measured = totals
    return measured


async def estimate(client: Client, prefix: str, *, seconds: float) -> Usage:
    """Count the keys of a prefix, measure keys for a number of seconds, and extrapolate to the keys not read.

    Each remaining key counts as the median of the measured sizes. A namespace may begin with a few large objects, and
    a mean would apply their size to all keys. The estimate is at most the size in use of the whole database. Raises
    DataError.
    """
    keys, ends, total = await client.count(prefix), time.monotonic() + seconds, Usage(0, 0)
    steps: list[Usage] = []
    async with contextlib.aclosing(_measured(client, prefix, share=1.0)) as measured:
        async for progress in measured:
            steps.append(Usage(progress.keys - total.keys, progress.bytes - total.bytes))
            total = progress
            if time.monotonic() > ends and total.keys < keys:
                estimated = total.bytes + round(_median_size(steps) * (keys - total.keys))
                in_use = await client.size_in_use()
                return Usage(keys, max(total.bytes, min(estimated, in_use)), total.largest)
    return total


def _median_size(steps: Sequence[Usage]) -> float:
    """Return the median size of a key and its value, in bytes. All keys of a step count with the mean of the step."""
    left = sum(step.keys for step in steps) / 2
    for step in sorted((step for step in steps if step.keys), key=lambda step: step.bytes / step.keys):
        left -= step.keys
        if left <= 0:
            return step.bytes / step.keys
    return 0.0


async def _measured(client: Client, prefix: str, *, share: float) -> AsyncGenerator[Usage]:
    """Measure a prefix step by step, and yield the totals so far."""
    walk, total = Walk(prefix, first=_FIRST, most=_MOST, size=_BYTES), Usage(0, 0)
    while not walk.ended:
        began = time.monotonic()
        try:
            step = await client.weigh(walk)
        except (TooLarge, TimedOut):
            if not walk.halve():
                raise
        else:
            total = Usage(total.keys + step.keys, total.bytes + step.size, max(total.largest, step.largest))
            yield total
        await asyncio.sleep((time.monotonic() - began) * (1 / share - 1))
