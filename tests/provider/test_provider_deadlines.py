"""A timer for many deadlines of equal length."""

from __future__ import annotations

import asyncio

from kplane.provider.controllers.workers import Deadlines


async def test_deadlines_report_only_expired_names(eventually):
    over = []
    deadlines = Deadlines(0.02, over.append)
    for name in ("a", "ended", "b"):
        deadlines.begin(name)
    deadlines.end("ended")
    deadlines.end("never begun")
    await eventually(lambda: over, lambda names: names == ["a", "b"])
    deadlines.begin("c")
    deadlines.begin("closed")
    await eventually(lambda: over[2:], lambda names: names == ["c", "closed"])
    deadlines.begin("d")
    deadlines.close()
    await asyncio.sleep(0.03)
    assert len(over) == 4


async def test_deadline_begun_later_keeps_its_full_time(eventually):
    now = asyncio.get_running_loop().time
    over = {}
    deadlines = Deadlines(0.05, lambda name: over.setdefault(name, now()))
    began = {"a": now()}
    deadlines.begin("a")
    await asyncio.sleep(0.03)
    began["b"] = now()
    deadlines.begin("b")
    await eventually(lambda: len(over), lambda count: count == 2)
    assert all(over[name] - began[name] >= 0.045 for name in over)


async def test_deadline_may_begin_again_in_its_callback(eventually):
    over = []

    def again(name):
        over.append(name)
        if len(over) < 3:
            deadlines.begin(name)

    deadlines = Deadlines(0.005, again)
    deadlines.begin("a")
    await eventually(lambda: over, lambda names: names == ["a"] * 3)
