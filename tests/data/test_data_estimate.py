"""The estimate of what a prefix takes, where a few large objects are measured first."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kplane.data import Client, Usage, Weight, estimate

KEYS, LARGE, SMALL = 3_200, 1_450_000, 20_000
TOTAL = 10 * LARGE + (KEYS - 10) * SMALL


def etcd(*, in_use: int) -> Client:
    """An etcd that has ten large objects before the others, and weighs them one by one."""
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
    """`expires_after(steps)` lets the time of the measurement end."""

    def expire(steps: int) -> None:
        # One look before the first step, and three for each: begin, end, and the deadline.
        looks = iter([0.0] * (3 * steps - 1) + [100.0] * 1000)
        clock = SimpleNamespace(monotonic=lambda: next(looks))
        monkeypatch.setattr(sys.modules["kplane.data.usage"], "time", clock)

    return expire


async def test_large_objects_at_the_beginning_do_not_stand_for_all_others(expires_after: Any) -> None:
    expires_after(20)
    found = await estimate(etcd(in_use=10 * TOTAL), "/acme/", seconds=3.0)
    assert found.keys == KEYS
    assert 0.9 * TOTAL < found.bytes < 1.1 * TOTAL


async def test_estimate_does_not_exceed_the_database(expires_after: Any) -> None:
    expires_after(5)
    assert await estimate(etcd(in_use=2 * TOTAL), "/acme/", seconds=3.0) == Usage(KEYS, 2 * TOTAL)


async def test_estimate_is_at_least_what_was_measured(expires_after: Any) -> None:
    expires_after(5)
    assert (await estimate(etcd(in_use=1), "/acme/", seconds=3.0)).bytes >= 5 * LARGE
