"""The work queue: no key twice at once, none lost."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kplane.provider import QueueClosed, WorkQueue


async def take(queue):
    return await asyncio.wait_for(queue.get(), 60)


async def test_a_key_that_waits_is_not_added_twice():
    queue = WorkQueue()
    for key in ("a", "b", "a"):
        queue.add(key)
    assert len(queue) == 2
    assert [await take(queue), await take(queue)] == ["a", "b"]


async def test_a_key_added_while_worked_on_is_given_once_more_after_done():
    queue = WorkQueue()
    queue.add("a")
    assert await take(queue) == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await take(queue) == "a"
    queue.done("a")
    assert queue.idle


async def test_of_several_delays_the_earliest_counts():
    queue = WorkQueue()
    queue.add_after("a", 60)
    queue.add_after("a", 0.01)
    queue.add_after("a", 60)
    assert await take(queue) == "a"
    queue.done("a")
    assert queue.idle


async def test_delays_of_retries_grow_until_forgotten():
    queue = WorkQueue(initial_backoff_seconds=1, maximum_backoff_seconds=10)
    delays = [queue.retry("a") for _ in range(6)]
    for delay, bound in zip(delays, [1, 2, 4, 8, 10, 10], strict=True):
        assert bound / 2 <= delay <= bound
    assert queue.failures("a") == 6
    assert queue.retry("b") <= 1
    queue.forget("a")
    assert queue.retry("a") <= 1
    queue.close()


async def test_closing_gives_what_waits_and_then_wakes_everybody():
    queue = WorkQueue()
    queue.add("a")
    queue.add_after("later", 60)
    queue.close()
    queue.add("b")
    assert await take(queue) == "a"
    waiting = [asyncio.create_task(queue.get()) for _ in range(3)]
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, QueueClosed)
    assert queue.closed
    with pytest.raises(QueueClosed):
        await queue.get()


async def test_a_cancelled_getter_loses_no_key():
    queue = WorkQueue()
    for _ in range(50):
        getter = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        queue.add("a")
        getter.cancel()
        (result,) = await asyncio.gather(getter, return_exceptions=True)
        if isinstance(result, asyncio.CancelledError):
            assert await take(queue) == "a"
        queue.done("a")


steps = st.lists(
    st.tuples(st.sampled_from(["add", "later", "retry", "get", "done", "cancel"]), st.integers(0, 3)), max_size=60
)


@settings(max_examples=200, deadline=None)
@given(steps)
def test_any_order_of_steps_loses_no_key_and_gives_none_twice(taken):
    async def play():
        queue = WorkQueue(initial_backoff_seconds=0.0001, maximum_backoff_seconds=0.0002)
        working, owed = set(), set()
        for step, key in taken:
            if step in ("add", "later", "retry"):
                owed.add(key)
                {"add": queue.add, "later": lambda k: queue.add_after(k, 0.0001), "retry": queue.retry}[step](key)
            elif step == "done" and key in working:
                working.discard(key)
                queue.done(key)
            elif step == "cancel":
                getter = asyncio.create_task(queue.get())
                await asyncio.sleep(0)
                if not getter.cancel():
                    got = getter.result()
                    working.add(got)
                    owed.discard(got)
                await asyncio.wait([getter])
            elif step == "get" and len(queue):
                got = await queue.get()
                assert got not in working
                working.add(got)
                owed.discard(got)
        for key in working:
            queue.done(key)
        while owed:
            got = await asyncio.wait_for(queue.get(), 60)
            owed.discard(got)
            queue.done(got)
        queue.close()

    asyncio.run(play())
