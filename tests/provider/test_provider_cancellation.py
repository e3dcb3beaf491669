"""Stray CancelledErrors, as from `task.cancel(); await task`: the provider treats them as failures."""

from __future__ import annotations

import asyncio

import pytest

from kplane.provider import Cluster, ClusterConfig
from kplane.provider.aio.cancellation import complete, end_tasks
from kplane.provider.aio.running import keep_running
from kplane.provider.fleet.clusters import Clusters


async def stray():
    """Raise the CancelledError of another task, an easy mistake."""
    task = asyncio.create_task(asyncio.sleep(3600))
    task.cancel()
    await task


def cluster(name="a"):
    return Cluster(name, config=ClusterConfig("https://127.0.0.1:1"))


class Careless:
    """An aware with two callbacks: `first`, and a callback that raises a stray cancellation and runs before `first`."""

    def __init__(self):
        self.undone, self.tries, self.strays = [], 0, 0

    async def engage(self, engagement):
        self.tries += 1
        if self.tries <= self.strays:
            await stray()
        engagement.on_close(self.first)
        engagement.on_close(stray)

    async def first(self):
        self.undone.append("first")


async def test_callback_with_stray_cancellation_does_not_stop_others(eventually):
    careless = Careless()
    clusters = Clusters(awares=[careless], coordinated=True)
    await clusters.add_or_replace(cluster())
    clusters.allow("a")
    await eventually(lambda: careless.tries == 1)
    client = clusters.get("a").client
    await clusters.withdraw("a")
    assert careless.undone == ["first"]
    clusters.allow("a")
    await eventually(lambda: careless.tries == 2)
    await clusters.remove("a")
    assert careless.undone == ["first"] * 2
    with pytest.raises(Exception, match="closed"):
        await client.probe()
    await clusters.add_or_replace(cluster())
    await clusters.aclose()


async def test_aware_with_stray_cancellation_is_retried_and_reported(eventually):
    careless, told = Careless(), []
    careless.strays = 1
    clusters = Clusters(
        awares=[careless], retry_initial_seconds=0.2, on_error=lambda cluster, error: told.append((cluster.name, error))
    )
    await clusters.add_or_replace(cluster())
    await eventually(lambda: clusters.failure("a"), lambda why: why == "Careless failed to engage: CancelledError")
    await eventually(lambda: (careless.tries, clusters.failure("a")), lambda seen: seen == (2, None))
    ((name, error),) = told
    assert name == "a"
    assert isinstance(error, asyncio.CancelledError)
    await clusters.aclose()


async def test_keep_running_restarts_after_stray_cancellation():
    runs = []

    async def run():
        runs.append(len(runs))
        if len(runs) == 1:
            await stray()

    await asyncio.wait_for(keep_running("test", run), 60)
    assert runs == [0, 1]


async def test_keep_running_ends_when_its_task_is_cancelled():
    began = asyncio.Event()

    async def run():
        began.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(keep_running("test", run))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_complete_awaits_all_coroutines_before_raising():
    ended = []

    async def slow():
        await asyncio.sleep(0.01)
        ended.append("slow")

    with pytest.raises(asyncio.CancelledError):
        await complete([stray(), slow()])
    assert ended == ["slow"]


async def test_end_tasks_awaits_all_tasks_and_logs_a_task_still_running(monkeypatch, caplog):
    monkeypatch.setattr("kplane.provider.aio.cancellation._REMIND_SECONDS", 0.01)
    began, again = asyncio.Event(), asyncio.Event()

    async def deaf():
        try:
            began.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            again.set()
            await asyncio.Event().wait()

    async def failing():
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("odd")

    tasks = [asyncio.create_task(function(), name=function.__name__) for function in (deaf, failing)]
    await began.wait()
    await end_tasks(tasks)
    assert [task.done() for task in tasks] == [True, True]
    assert isinstance(tasks[1].exception(), ValueError)
    assert again.is_set()
    assert "task 'deaf' is still running; cancelling it again" in caplog.text


async def test_end_tasks_cancelled_midway_has_cancelled_the_task():
    began, go = asyncio.Event(), asyncio.Event()

    async def slow():
        try:
            await asyncio.Event().wait()
        finally:
            began.set()
            await go.wait()

    task = asyncio.create_task(slow())
    await asyncio.sleep(0)
    ending = asyncio.create_task(end_tasks([task]))
    await began.wait()
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert not task.done()
    go.set()
    await asyncio.wait([task])
    assert task.cancelled()
