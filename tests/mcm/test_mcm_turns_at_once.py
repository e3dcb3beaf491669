"""How many instances start at once is bounded."""

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
    """Instances that start, as far as their turns let them, and are not over."""

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
async def test_no_more_than_the_bound_start_at_once(eventually: Eventually, at_once: int) -> None:
    budget = StartBudget(at_once=at_once, longest_seconds=NEVER, stagger_seconds=0.0)
    starts = Starts(budget, count=6)
    await eventually(lambda: len(starts.began) == at_once)
    await asyncio.sleep(0)
    assert len(starts.began) == at_once
    starts.over.set()
    await eventually(lambda: len(starts.began) == 6)
    await starts.aclose()


async def test_without_a_number_two_start_at_once_for_each_processor(eventually: Eventually) -> None:
    cpus = usable_cpus()
    budget = StartBudget(longest_seconds=NEVER, stagger_seconds=0.0)
    starts = Starts(budget, count=2 * cpus + 2)
    await eventually(lambda: len(starts.began) == 2 * cpus)
    await asyncio.sleep(0)
    assert len(starts.began) == 2 * cpus
    starts.over.set()
    await eventually(lambda: len(starts.began) == 2 * cpus + 2)
    await starts.aclose()


async def test_there_is_some_time_between_any_two_starts(eventually: Eventually) -> None:
    budget = StartBudget(at_once=9, longest_seconds=0.0, stagger_seconds=0.05)
    starts = Starts(budget, count=4)
    await eventually(lambda: len(starts.began) == 4)
    assert all(later - earlier >= 0.049 for earlier, later in zip(starts.began, starts.began[1:], strict=False))
    await starts.aclose()


async def test_nobody_holds_a_turn_for_long(eventually: Eventually) -> None:
    budget = StartBudget(at_once=1, longest_seconds=0.05, stagger_seconds=0.0)
    starts = Starts(budget, count=3)
    await eventually(lambda: len(starts.began) == 3)
    assert starts.began[2] - starts.began[0] >= 0.09
    await starts.aclose()


async def test_what_takes_long_within_a_turn_makes_it_no_longer(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = StartBudget(at_once=1, longest_seconds=NEVER, stagger_seconds=0.0)
    loop = asyncio.get_running_loop()
    real, slept = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: real() + slept[0])

    async def start() -> None:
        async with budget.turn(over=asyncio.Event()):
            slept[0] += NEVER

    starting = asyncio.create_task(start())
    await eventually(starting.done)
    await starting


async def test_one_that_gives_up_waiting_leaves_the_turn_to_the_others(eventually: Eventually) -> None:
    budget = StartBudget(at_once=1, longest_seconds=NEVER, stagger_seconds=0.0)
    starts = Starts(budget, count=3)
    await eventually(lambda: len(starts.began) == 1)
    starts.tasks[1].cancel()
    await asyncio.wait([starts.tasks[1]])
    starts.tasks[0].cancel()
    await eventually(lambda: len(starts.began) == 2)
    await starts.aclose()


@pytest.mark.parametrize("failures", [0, 1])
async def test_a_fleet_that_crashes_again_and_again_holds_back_no_other_start(failures: int) -> None:
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


async def test_restarts_get_their_share_while_many_others_start() -> None:
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


async def test_a_turn_that_was_taken_ends_as_any_other(eventually: Eventually) -> None:
    budget = StartBudget(at_once=1, longest_seconds=NEVER, stagger_seconds=0.0)
    over = asyncio.Event()
    await budget.take(over=over, failures=1)
    starts = Starts(budget, count=1)
    await eventually(budget._door.locked)
    assert not starts.began
    over.set()
    await eventually(lambda: starts.began)
    await starts.aclose()


def test_a_quota_of_cpu_counts(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    machine = usable_cpus(tmp_path / "none")
    for text, cpus in (("max 100000", machine), ("50000 100000", 1), ("100000 100000", 1), ("0 0", machine)):
        quota.write_text(text)
        assert usable_cpus(quota) == cpus
