"""Estimates of the size of a prefix whose first objects are much larger than the rest."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kplane.data import Client, Usage, Weight, estimate

KEYS, LARGE, SMALL = 3_200, 1_450_000, 20_000
TOTAL = 10 * LARGE + (KEYS - 10) * SMALL


def etcd(*, in_use: int) -> Client:
    """Return a fake etcd with ten large objects, each weighed in its own step, before the small objects."""
    weights = iter([Weight(1, LARGE)] * 10 + [Weight(32, 32 * SMALL)] * 100)

    async def count(_: str) -> int:
        return KEYS

    async def weigh(_: Any) -> Weight:
        return next(weights)

    async def size_in_use() -> int:
        return in_use

    return cast("Client", SimpleNamespace(count=count, weigh=weigh, size_in_use=size_in_use))


@pytest.fixture
def expires_after(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`expires_after(steps)` ends the measurement after this number of steps."""

    def expire(steps: int) -> None:
        # The clock is read before the first step, and three times for each step: begin, end and deadline.
        readings = iter([0.0] * (3 * steps - 1) + [100.0] * 1000)
        clock = SimpleNamespace(monotonic=lambda: next(readings))
        monkeypatch.setattr(sys.modules["kplane.data.usage"], "time", clock)

    return expire


async def test_estimate_is_accurate_with_large_objects_first(expires_after: Any) -> None:
    expires_after(20)
    result = await estimate(etcd(in_use=10 * TOTAL), "/acme/", seconds=3.0)
    assert result.keys == KEYS
    assert 0.9 * TOTAL < result.bytes < 1.1 * TOTAL


async def test_estimate_does_not_exceed_the_database(expires_after: Any) -> None:
    expires_after(5)
    assert await estimate(etcd(in_use=2 * TOTAL), "/acme/", seconds=3.0) == Usage(KEYS, 2 * TOTAL)


async def test_estimate_is_at_least_the_measured_size(expires_after: Any) -> None:
    expires_after(5)
    assert (await estimate(etcd(in_use=1), "/acme/", seconds=3.0)).bytes >= 5 * LARGE
