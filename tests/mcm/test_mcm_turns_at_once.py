"""Limit of the number of instances that start at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.mcm.instance.turns import StartBudget
from kplane.workloads.cpus import usable_cpus

Eventually = Callable[..., Any]
NEVER = 3600.0


class Starts:
    """Instances that start when they get a turn, and keep the turn until `over` is set."""

    def __init__(self, budget: StartBudget, *, count: int) -> None:
        self.began: list[float] = []
        self.over = asyncio.Event()
        self._budget = budget
        self.tasks = [asyncio.create_task(self._start()) for _ in range(count)]

    async def _start(self) -> None:
        async with self._budget.turn(over=self.over):
            self.began.append(asyncio.get_running_loop().time())

    async def aclose(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


@pytest.mark.parametrize("at_once", [1, 2, 4])
async def test_budget_limits_the_number_of_starts_at_once(eventually: Eventually, at_once: int) -> None:
    budget = StartBudget(at_once=at_once, longest_seconds=NEVER, stagger_seconds=0.0)
    starts = Starts(budget, count=6)
    await eventually(lambda: len(starts.began) == at_once)
    await asyncio.sleep(0)
    assert len(starts.began) == at_once
    starts.over.set()
    await eventually(lambda: len(starts.began) == 6)
    await starts.aclose()


async def test_default_budget_is_two_starts_for_each_processor(eventually: Eventually) -> None:
    cpus = usable_cpus()
    budget = StartBudget(longest_seconds=NEVER, stagger_seconds=0.0)
    starts = Starts(budget, count=2 * cpus + 2)
    await eventually(lambda: len(starts.began) == 2 * cpus)
    await asyncio.sleep(0)
    assert len(starts.began) == 2 * cpus
    starts.over.set()
    await eventually(lambda: len(starts.began) == 2 * cpus + 2)
    await starts.aclose()


async def test_starts_are_staggered(eventually: Eventually) -> None:
    budget = StartBudget(at_once=9, longest_seconds=0.0, stagger_seconds=0.05)
    starts = Starts(budget, count=4)
    await eventually(lambda: len(starts.began) == 4)
    assert all(later - earlier >= 0.049 for earlier, later in zip(starts.began, starts.began[1:], strict=False))
    await starts.aclose()


async def test_turn_ends_after_its_longest_time(eventually: Eventually) -> None:
    budget = StartBudget(at_once=1, longest_seconds=0.05, stagger_seconds=0.0)
    starts = Starts(budget, count=3)
    await eventually(lambda: len(starts.began) == 3)
    assert starts.began[2] - starts.began[0] >= 0.09
    await starts.aclose()


async def test_time_within_a_turn_counts_towards_its_longest_time(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = StartBudget(at_once=1, longest_seconds=NEVER, stagger_seconds=0.0)
    loop = asyncio.get_running_loop()
    real_time, offset = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: real_time() + offset[0])

    async def start() -> None:
        async with budget.turn(over=asyncio.Event()):
            offset[0] += NEVER

    starting = asyncio.create_task(start())
    await eventually(starting.done)
    await starting


async def test_cancelled_waiter_leaves_the_turn_to_others(eventually: Eventually) -> None:
    budget = StartBudget(at_once=1, longest_seconds=NEVER, stagger_seconds=0.0)
    starts = Starts(budget, count=3)
    await eventually(lambda: len(starts.began) == 1)
    starts.tasks[1].cancel()
    await asyncio.wait([starts.tasks[1]])
    starts.tasks[0].cancel()
    await eventually(lambda: len(starts.began) == 2)
    await starts.aclose()


@pytest.mark.parametrize("failures", [0, 1])
async def test_repeated_crashes_do_not_delay_other_starts(failures: int) -> None:
    budget, order = StartBudget(at_once=1, longest_seconds=NEVER, stagger_seconds=0.0), []

    async def start(name: str, *, failures: int) -> None:
        over = asyncio.Event()
        async with budget.turn(over=over, failures=failures):
            order.append(name)
            over.set()

    async with asyncio.TaskGroup() as tasks:
        for number in range(100):
            tasks.create_task(start("crashed", failures=2 + number))
        await asyncio.sleep(0)
        tasks.create_task(start("other", failures=failures))
    assert len(order) == 101
    assert order.index("other") <= 2


async def test_first_starts_and_restarts_share_turns_equally() -> None:
    budget, order = StartBudget(at_once=1, longest_seconds=NEVER, stagger_seconds=0.0), []

    async def start(failures: int) -> None:
        over = asyncio.Event()
        async with budget.turn(over=over, failures=failures):
            order.append(failures)
            over.set()

    async with asyncio.TaskGroup() as tasks:
        for failures in [0] * 30 + [1] * 10 + [5] * 10:
            tasks.create_task(start(failures))
    assert sorted(order[:15]) == [0] * 5 + [1] * 5 + [5] * 5


async def test_taken_turn_delays_the_next_start_until_it_is_over(eventually: Eventually) -> None:
    budget = StartBudget(at_once=1, longest_seconds=NEVER, stagger_seconds=0.0)
    over = asyncio.Event()
    await budget.take(over=over, failures=1)
    starts = Starts(budget, count=1)
    await eventually(budget._door.locked)
    assert not starts.began
    over.set()
    await eventually(lambda: starts.began)
    await starts.aclose()


def test_cpu_quota_limits_usable_cpus(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    machine = usable_cpus(tmp_path / "none")
    for text, cpus in (("max 100000", machine), ("50000 100000", 1), ("100000 100000", 1), ("0 0", machine)):
        quota.write_text(text)
        assert usable_cpus(quota) == cpus
