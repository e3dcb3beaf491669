"""The work queue: it processes a key once at a time, and loses no key."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from kplane.provider.controllers.queue import FairQueue
from kplane.provider.controllers.rate_limiter import ItemBackoff


async def take(queue):
    """Wait for the next key."""
    async with asyncio.timeout(60):
        while (key := queue.take()) is None:  # noqa: ASYNC110 - as a worker would take it
            await asyncio.sleep(0.0005)
    return key


async def test_queue_holds_a_waiting_key_once():
    queue = FairQueue()
    for key in ("a", "b", "a"):
        queue.add(key)
    assert len(queue) == 2
    assert [await take(queue), await take(queue)] == ["a", "b"]


async def test_queue_returns_a_key_again_if_added_before_done():
    queue = FairQueue()
    queue.add("a")
    assert await take(queue) == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await take(queue) == "a"
    queue.done("a")
    assert queue.idle


async def test_queue_uses_the_earliest_of_several_delays():
    queue = FairQueue()
    queue.add_after("a", 60)
    queue.add_after("a", 0.01)
    queue.add_after("a", 60)
    assert await take(queue) == "a"
    queue.done("a")
    assert queue.idle


async def test_queue_retry_delays_grow_until_forget():
    queue = FairQueue(rate_limiter=ItemBackoff(initial_seconds=1, maximum_seconds=10))
    delays = [queue.retry("a") for _ in range(6)]
    for delay, bound in zip(delays, [1, 2, 4, 8, 10, 10], strict=True):
        assert bound / 2 <= delay <= bound
    assert queue.failures("a") == 6
    assert queue.retry("b") <= 1
    queue.forget("a")
    assert queue.retry("a") <= 1
    queue.close()


async def test_closed_queue_returns_waiting_keys_and_notifies():
    queue, told = FairQueue(), []
    queue.add("a")
    queue.add_after("later", 60)
    queue.on_ready(lambda: told.append(queue.closed))
    queue.close()
    queue.close()
    queue.add("b")
    assert await take(queue) == "a"
    queue.done("a")
    assert queue.take() is None
    assert queue.closed
    assert queue.idle
    assert told == [True]


async def test_queue_retry_adds_a_key_that_is_not_processed():
    queue = FairQueue(rate_limiter=ItemBackoff(initial_seconds=0.001))
    assert queue.retry("a") is not None
    assert await take(queue) == "a"


steps = st.lists(st.tuples(st.sampled_from(["add", "later", "retry", "get", "done"]), st.integers(0, 3)), max_size=60)


@settings(max_examples=200, deadline=None)
@given(steps)
def test_queue_loses_no_key_and_returns_none_twice_in_any_order(taken):
    async def play():
        queue = FairQueue(rate_limiter=ItemBackoff(initial_seconds=0.0001, maximum_seconds=0.0002))
        working, owed = set(), set()
        for step, key in taken:
            if step in ("add", "later", "retry"):
                owed.add(key)
                {"add": queue.add, "later": lambda k: queue.add_after(k, 0.0001), "retry": queue.retry}[step](key)
            elif step == "done" and key in working:
                working.discard(key)
                queue.done(key)
            elif step == "get" and len(queue):
                got = queue.take()
                assert got is not None
                assert got not in working
                working.add(got)
                owed.discard(got)
        for key in working:
            queue.done(key)
        while owed:
            got = await take(queue)
            owed.discard(got)
            queue.done(got)
        queue.close()

    asyncio.run(play())
