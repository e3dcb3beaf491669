"""Controllers: retries, deadlines, and workers that survive failures of reconciles."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import logging

import pytest

from kplane.provider import ProviderError, Result, logs
from kplane.provider.controllers.queue import FairQueue
from kplane.provider.controllers.rate_limiter import ItemBackoff
from kplane.provider.controllers.workers import Controller


@contextlib.asynccontextmanager
async def running(controller):
    task = asyncio.create_task(controller.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_workers_reconcile_keys_in_parallel_and_each_key_once(eventually):
    at_work, most, calls = collections.Counter(), collections.Counter(), collections.Counter()
    queue = FairQueue()

    async def reconcile(key):
        at_work[key] += 1
        calls[key] += 1
        most[key] = max(most[key], at_work[key])
        most["all"] = max(most["all"], at_work.total())
        if calls[key] < 3:
            queue.add(key)
        await asyncio.sleep(0.01)
        at_work[key] -= 1

    async with running(Controller("test", reconcile, queue=queue, workers=3)):
        for key in ("a", "b", "c"):
            queue.add(key)
        await eventually(lambda: (dict(calls), queue.idle), lambda seen: seen == ({"a": 3, "b": 3, "c": 3}, True))
    assert most == {"a": 1, "b": 1, "c": 1, "all": 3}


@pytest.mark.parametrize("failure", [ProviderError("no"), ValueError("odd"), asyncio.CancelledError(), None])
async def test_failed_reconcile_is_retried_and_worker_survives(eventually, caplog, failure):
    tries = []
    queue = FairQueue(rate_limiter=ItemBackoff(initial_seconds=0.001))

    async def reconcile(key):
        tries.append(key)
        if len(tries) < 4:
            if failure is None:
                await asyncio.sleep(60)
            raise failure

    async with running(Controller("test", reconcile, queue=queue, workers=1, timeout_seconds=0.02)):
        queue.add("a")
        await eventually(lambda: (len(tries), queue.idle), lambda seen: seen == (4, True))
        assert queue.failures("a") == 0
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 3


async def test_result_with_requeue_after_is_repeated(eventually):
    tries = []
    queue = FairQueue()

    async def reconcile(key):
        tries.append(key)
        return Result(requeue_after_seconds=0.01) if len(tries) < 3 else None

    async with running(Controller("test", reconcile, queue=queue)):
        queue.add("a")
        await eventually(lambda: (len(tries), queue.idle), lambda seen: seen == (3, True))


async def test_result_with_requeue_is_retried_without_failure(eventually, caplog):
    tries = []
    queue = FairQueue(rate_limiter=ItemBackoff(initial_seconds=0.001))

    async def reconcile(key):
        tries.append(queue.failures(key))
        return Result(requeue=True) if len(tries) < 4 else None

    async with running(Controller("test", reconcile, queue=queue)):
        queue.add("a")
        await eventually(lambda: (len(tries), queue.idle), lambda seen: seen == (4, True))
    assert (tries, queue.failures("a"), caplog.records) == ([0, 1, 2, 3], 0, [])


async def test_drain_waits_for_its_keys_and_cancels_after_the_grace(eventually):
    ended, gates = [], {"a": asyncio.Event(), "b": asyncio.Event(), "c": asyncio.Event()}
    queue = FairQueue()

    async def reconcile(key):
        try:
            await gates[key].wait()
        except asyncio.CancelledError:
            ended.append(f"{key} cancelled")
            raise
        ended.append(key)

    controller = Controller("test", reconcile, queue=queue)
    async with running(controller):
        for key in gates:
            queue.add(key)
        await eventually(lambda: sorted(controller.under_way), lambda keys: keys == ["a", "b", "c"])
        draining = asyncio.create_task(controller.drain(lambda key: key in "ab", grace_seconds=0.05))
        gates["a"].set()
        await draining
        assert (ended, controller.under_way) == (["a", "b cancelled"], ["c"])
        await controller.drain(lambda key: key in "ab", grace_seconds=60)
    assert ended == ["a", "b cancelled", "c cancelled"]


async def test_cancelled_controller_ends_during_a_reconcile_timeout():
    over = asyncio.Event()
    queue = FairQueue()

    async def reconcile(key):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            over.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(Controller("test", reconcile, queue=queue, timeout_seconds=0.02).run())
    queue.add("a")
    await over.wait()
    task.cancel()
    await asyncio.wait_for(asyncio.wait([task]), 60)
    assert task.cancelled()


async def test_controller_ends_when_its_queue_is_closed_and_empty():
    done = []
    queue = FairQueue()

    async def reconcile(key):
        done.append(key)

    queue.add("a")
    queue.close()
    await asyncio.wait_for(Controller("test", reconcile, queue=queue).run(), 60)
    assert done == ["a"]


async def test_reconciles_create_no_reference_cycles(eventually):
    queue = FairQueue()

    async def reconcile(key):
        await asyncio.sleep(0)

    async with running(Controller("test", reconcile, queue=queue, waiting=10)):
        await asyncio.sleep(0)
        gc.collect()
        gc.disable()
        try:
            for key in range(500):
                queue.add(key)
            await eventually(lambda: queue.idle)
            assert gc.collect() < 250
        finally:
            gc.enable()


async def test_cancelled_controller_awaits_running_reconciles():
    ended = []
    queue = FairQueue()
    begun = asyncio.Event()

    async def reconcile(key):
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append(key)

    async with running(Controller("test", reconcile, queue=queue)):
        queue.add("a")
        await begun.wait()
    assert ended == ["a"]


@pytest.mark.parametrize(
    ("failure", "told"), [(ProviderError("no"), ProviderError), (asyncio.CancelledError(), asyncio.CancelledError)]
)
async def test_on_failure_receives_each_failure_and_timeout(eventually, caplog, failure, told):
    reports = []
    queue = FairQueue(rate_limiter=ItemBackoff(initial_seconds=0.001))

    async def reconcile(key):
        if not reports:
            raise failure
        if len(reports) == 1:
            await asyncio.sleep(60)

    async def report(key, error):
        reports.append((key, type(error)))
        raise ValueError("whoever is told may fail as well")

    controller = Controller(
        "test",
        reconcile,
        queue=queue,
        workers=1,
        timeout_seconds=0.05,
        on_failure=report,
        fields=lambda key: {"object": f"Thing/{key}"},
    )
    with caplog.at_level(logging.WARNING), caplog.filtering(_Noting()):
        async with running(controller):
            queue.add("a")
            await eventually(lambda: (len(reports), queue.idle), lambda seen: seen == (2, True))
    assert reports == [("a", told), ("a", TimeoutError)]
    assert {record.noted["object"] for record in caplog.records} == {"Thing/a"}


class _Noting(logging.Filter):
    """Records the log fields in the context of the logging task."""

    def filter(self, record):
        record.noted = dict(logs._fields.get())
        return True
