"""The queue over clusters: fairness, deduplication, delays, priorities, and removal of a cluster."""

from __future__ import annotations

import asyncio
import collections
import gc
import itertools
import sys

import pytest
import uvloop
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kplane.provider.controllers.queue import FairQueue
from kplane.provider.controllers.rate_limiter import ItemBackoff
from kplane.provider.controllers.request import Request


def request(cluster, name="x"):
    return Request(cluster, "ns", str(name))


def drain(queue, *, count=1 << 30):
    taken = []
    while len(taken) < count and (each := queue.take()) is not None:
        taken.append(each)
        queue.done(each)
    return taken


def test_queue_takes_other_cluster_next_during_flood():
    """Criterion 70: while 10,000 requests of A wait, the next worker slot takes the first request of B."""
    queue = FairQueue()
    for number in range(10_000):
        queue.add(request("a", number))
    assert len(drain(queue, count=100)) == 100
    queue.add(request("b", 1))
    queue.add(request("b", 2))
    taken = [each.cluster for each in drain(queue, count=3)]
    assert taken[0] == "b"
    assert sorted(taken) == ["a", "b", "b"]


def test_cluster_with_one_request_at_a_time_does_not_starve_others():
    queue, taken = FairQueue(), []
    for number in range(1000):
        queue.add(request("a", number))
    for number in range(100):
        queue.add(request("b", number))
        taken += drain(queue, count=1)
    assert collections.Counter(each.cluster for each in taken) == {"a": 50, "b": 50}


async def test_hasten_adds_a_delayed_request_once_and_no_other():
    queue = FairQueue()
    queue.add_after(request("a"), 60)
    queue.hasten(request("a", "not delayed"))
    queue.hasten(request("b"))
    queue.hasten(request("a"))
    assert drain(queue) == [request("a")]
    queue.hasten(request("a"))
    assert (drain(queue), queue.idle) == ([], True)


def test_clusters_at_their_cap_leave_slots_to_others():
    queue, counts = FairQueue(per_cluster=1), collections.Counter()
    for cluster, number in itertools.product("abcd", range(100)):
        queue.add(request(cluster, number))
    working = [queue.take(), queue.take()]
    for _ in range(100):
        queue.done(working.pop(0))
        working.append(queue.take())
        counts[working[-1].cluster] += 1
    assert counts == {"a": 25, "b": 25, "c": 25, "d": 25}


def test_equal_requests_are_deduplicated_per_cluster():
    """Criterion 31: equal requests are deduplicated, equal keys of two clusters are not."""
    queue = FairQueue()
    for cluster in ("a", "b", "a", ""):
        queue.add(request(cluster))
    assert len(queue) == 3
    assert drain(queue) == [request("a"), request("b"), request("")]
    assert [str(request("a")), str(request(""))] == ["cluster://a/ns/x", "ns/x"]


def test_weights_divide_the_turns():
    queue = FairQueue(weights={"a": 1.0, "b": 3.0, "c": 0.5}.__getitem__)
    for cluster, number in itertools.product("abc", range(900)):
        queue.add(request(cluster, number))
    counts = collections.Counter(each.cluster for each in drain(queue, count=900))
    assert counts == {"a": 200, "b": 600, "c": 100}


@pytest.mark.parametrize("weight", [0, -1, float("inf"), 1e9, "heavy", None])
def test_invalid_weight_starves_no_cluster(weight):
    queue = FairQueue(weights=lambda cluster: weight if cluster == "odd" else 1.0)
    for cluster, number in itertools.product(("odd", "b"), range(300)):
        queue.add(request(cluster, number))
    counts = collections.Counter(each.cluster for each in drain(queue, count=299))
    assert counts["odd"] > 0
    assert counts["b"] > 0


def test_failing_weights_function_is_logged_once(caplog):
    queue = FairQueue(weights={}.__getitem__)
    for number in range(10):
        queue.add(request(str(number)))
    assert len(drain(queue)) == 10
    assert len(caplog.records) == 1


def test_per_cluster_limits_concurrent_requests():
    queue = FairQueue(per_cluster=2)
    for cluster, number in itertools.product("ab", range(5)):
        queue.add(request(cluster, number))
    taken = [queue.take() for _ in range(5)]
    assert collections.Counter(each.cluster for each in taken if each) == {"a": 2, "b": 2}
    assert taken[4] is None
    queue.done(taken[0])
    assert queue.take() == request(taken[0].cluster, 2)
    assert queue.take() is None


def test_request_added_while_processing_is_taken_again_after_done():
    queue = FairQueue()
    queue.add(request("a"))
    assert queue.take() == request("a")
    queue.add(request("a"))
    queue.add(request("a"))
    assert (queue.take(), len(queue), queue.idle) == (None, 0, False)
    queue.done(request("a"))
    assert drain(queue) == [request("a")]
    assert queue.idle


async def test_request_with_several_delays_uses_the_earliest(eventually):
    queue = FairQueue()
    queue.add_after(request("a"), 60)
    queue.add_after(request("a"), 0.01)
    queue.add_after(request("a"), 60)
    assert queue.take() is None
    await eventually(lambda: drain(queue), lambda taken: taken == [request("a")])
    assert queue.idle


async def test_repeatedly_shortened_delay_keeps_heap_small():
    queue = FairQueue()
    for tenths in range(10_000, 0, -1):
        queue.add_after(request("a"), 100 + tenths / 10)
    assert len(queue._lanes["a"].heap) < 200
    queue.close()


def test_delay_below_uvloop_resolution_is_delivered():
    """uvloop returns no timer for such a delay, so the next delay must not read the time of that timer."""

    async def add() -> list[str]:
        queue, due, taken = FairQueue(), asyncio.Event(), []
        queue.on_ready(due.set)
        queue.add_after(request("a", "later"), 0.0003)
        queue.add_after(request("a", "sooner"), 0.0001)
        async with asyncio.timeout(10):
            while len(taken) < 2:
                await due.wait()
                due.clear()
                taken.extend(each.name for each in drain(queue))
        return taken

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert sorted(runner.run(add())) == ["later", "sooner"]


async def test_retry_delay_grows_until_request_is_forgotten():
    queue = FairQueue(rate_limiter=ItemBackoff(initial_seconds=1, maximum_seconds=10))
    queue.add(request("a"))
    queue.take()
    delays = [queue.retry(request("a")) for _ in range(6)]
    for delay, bound in zip(delays, [1, 2, 4, 8, 10, 10], strict=True):
        assert bound / 2 <= delay <= bound
    assert queue.failures(request("a")) == 6
    queue.forget(request("a"))
    assert queue.retry(request("a")) <= 1
    queue.close()


async def test_dropped_cluster_loses_requests_and_refuses_late_retries():
    """Criterion 27: the queue holds no request of a dropped cluster, even after a late retry."""
    queue = FairQueue()
    for cluster in ("a", "b"):
        queue.unpark(cluster)
        for number in range(3):
            queue.add(request(cluster, number))
    queue.add_after(request("a", "later"), 60)
    under_way = queue.take()
    assert under_way == request("a", 0)
    queue.retry(under_way)
    assert queue.drop("a") == 4
    assert queue.retry(under_way) is None
    queue.requeue(under_way, 0.0)
    assert [each.cluster for each in drain(queue)] == ["b"] * 3
    assert queue.failures(under_way) == 0
    queue.done(under_way)
    assert queue.idle
    assert dict(queue.depths()) == {"b": 0}


async def test_request_of_readded_cluster_waits_for_its_predecessor():
    queue = FairQueue()
    queue.add(request("a"))
    under_way = queue.take()
    queue.drop("a")
    queue.add(request("a"))
    assert queue.take() is None
    queue.done(under_way)
    assert queue.take() == request("a")


def test_drop_takes_constant_time():
    def steps(count):
        queue, taken = FairQueue(), collections.Counter()
        for number in range(count):
            queue.add(request("a", number))

        def count_step(frame, event, argument):
            taken[event] += 1
            return count_step

        lane = queue._lanes["a"]
        kept, former = (lane.waiting, lane.dirty), sys.gettrace()
        # A garbage collection within the call would count the finalizers of other tests.
        gc.disable()
        sys.settrace(count_step)
        try:
            dropped = queue.drop("a")
        finally:
            sys.settrace(former)
            gc.enable()
        assert dropped == count
        # The collections are released whole. Emptying them would take longer for more requests.
        assert [len(each) for each in kept] == [count, count]
        return taken

    assert steps(2000) == steps(10)
    assert steps(10)["line"] > 0


async def test_requests_of_parked_cluster_wait_up_to_a_limit(eventually):
    """Criterion 71: requests of a cluster that is not ready wait until the cluster is ready."""
    queue = FairQueue(parked_limit=3)
    queue.park("a")
    queue.add_after(request("a", "delayed"), 0.001)
    await eventually(lambda: queue.depth("a"), lambda depth: depth == 1)
    for number in range(5):
        queue.add(request("a", number))
    queue.add(request("b"))
    assert (queue.depth("a"), queue.refused, queue.parked()) == (3, 3, ["a"])
    assert drain(queue) == [request("b")]
    queue.unpark("a")
    assert [each.name for each in drain(queue)] == ["delayed", "0", "1"]
    queue.park("a")
    for number in range(5):
        queue.add(request("a", number))
    assert (queue.depth("a"), queue.refused, queue.parked()) == (5, 3, ["a"])


def test_unknown_cluster_names_leave_no_lanes():
    queue = FairQueue()
    for number in range(1000):
        queue.add(request(f"stranger-{number}"))
    assert len(drain(queue)) == 1000
    assert queue.depths() == {}


async def test_close_yields_waiting_requests_and_drops_delayed():
    told = []
    queue = FairQueue()
    queue.on_ready(lambda: told.append(len(queue)))
    queue.add(request("a"))
    queue.add(request("a", 2))
    queue.add_after(request("b"), 60)
    assert told == [1]
    queue.close()
    queue.close()
    queue.add(request("c"))
    queue.add_after(request("c"), 60)
    assert (told, queue.closed) == ([1, 2], True)
    assert drain(queue) == [request("a"), request("a", 2)]
    assert queue.idle


def test_low_priority_requests_come_later_without_starving():
    queue, taken = FairQueue(), []
    for name in range(3):
        queue.add(request("a", name), low_priority=True)
    for name in range(3, 40):
        queue.add(request("a", name))
    queue.add(request("a", 2))
    queue.add(request("a", 3), low_priority=True)
    while (each := queue.take()) is not None:
        taken.append(int(each.name))
        queue.done(each)
    assert taken == [*range(3, 19), 0, *range(19, 35), 1, *range(35, 40), 2]


async def test_retry_keeps_low_priority_until_object_changes(eventually):
    queue = FairQueue(rate_limiter=ItemBackoff(initial_seconds=0.001, maximum_seconds=0.001))
    queue.add(request("a", 1), low_priority=True)
    assert queue.take() == request("a", 1)
    queue.retry(request("a", 1))
    queue.done(request("a", 1))
    await eventually(lambda: queue.depth("a"), lambda depth: depth == 1)
    queue.add(request("a", 2))
    assert queue.take() == request("a", 2)
    queue.done(request("a", 2))
    assert queue.take() == request("a", 1)
    queue.requeue(request("a", 1), 3600)
    queue.add_after(request("a", 1), 0.001)
    queue.done(request("a", 1))
    await eventually(lambda: queue.depth("a"), lambda depth: depth == 1)
    queue.add(request("a", 3))
    assert queue.take() == request("a", 1), "it was asked for anew"


CLUSTERS = st.sampled_from(["a", "b", "c"])
NAMES = st.integers(0, 3)


class Model(RuleBasedStateMachine):
    """A model of client-go's queue for each cluster, compared with FairQueue. No delay ends during the test."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.queue = FairQueue(
            per_cluster=2,
            parked_limit=3,
            weights={"a": 1, "b": 2, "c": 0.5}.__getitem__,
            rate_limiter=ItemBackoff(initial_seconds=3600, maximum_seconds=7200),
        )
        self.waiting = collections.defaultdict(list)
        self.low = collections.defaultdict(list)  # Requests of `waiting` with low priority, in order.
        self.passed_over = collections.Counter()
        self.low_again = collections.defaultdict(set)  # Requests of `again` with low priority.
        self.again = collections.defaultdict(list)  # Requests added while processed.
        self.working = {}  # Request: whether its cluster was dropped since.
        self.delayed = collections.defaultdict(set)
        self.parked = set()
        self.kept = set()  # Clusters that were unparked and not dropped since.

    def teardown(self):
        self.queue.close()
        self.loop.close()

    def at_work(self, cluster):
        return sum(each.cluster == cluster for each in self.working)

    def full(self, cluster, there):
        return cluster in self.parked and cluster not in self.kept and len(there) >= 3

    def takeable(self):
        return {c for c in self.waiting if self.waiting[c] and c not in self.parked and self.at_work(c) < 2}

    @rule(cluster=CLUSTERS, name=NAMES, low_priority=st.booleans())
    def add(self, cluster, name, low_priority):
        each = request(cluster, name)
        self.queue.add(each, low_priority=low_priority)
        known = self.waiting[cluster] + self.again[cluster]
        if each in self.low[cluster] and not low_priority:
            self.low[cluster].remove(each)
            self.waiting[cluster].remove(each)
            self.waiting[cluster].append(each)
        if not low_priority:
            self.low_again[cluster].discard(each)
        if each not in known and not self.full(cluster, known):
            (self.again if each in self.working else self.waiting)[cluster].append(each)
            if low_priority and each not in self.working:
                self.low[cluster].append(each)
            elif low_priority:
                self.low_again[cluster].add(each)

    def next_of(self, cluster):
        """Return the next request: normal priority first, except for each 17th turn."""
        waiting, low = self.waiting[cluster], self.low[cluster]
        others = [each for each in waiting if each not in low]
        if not low:
            return others[0]
        if others and self.passed_over[cluster] < 16:
            self.passed_over[cluster] += 1
            return others[0]
        self.passed_over[cluster] = 0
        return low[0]

    @rule(cluster=CLUSTERS, name=NAMES)
    def add_after(self, cluster, name):
        each = request(cluster, name)
        self._timed(self.queue.add_after, each, 3600)
        if not self.full(cluster, self.delayed[cluster]):
            self.delayed[cluster].add(each)

    @rule()
    def take(self):
        taken, possible = self.queue.take(), self.takeable()
        if taken is None:
            assert not possible
            return
        assert taken.cluster in possible
        assert taken == self.next_of(taken.cluster)
        for waiting in (self.waiting, self.low):
            if taken in waiting[taken.cluster]:
                waiting[taken.cluster].remove(taken)
        assert taken not in self.working
        self.working[taken] = False

    @precondition(lambda self: self.working)
    @rule(data=st.data(), retry=st.booleans())
    def done(self, data, retry):
        each = data.draw(st.sampled_from(sorted(self.working)))
        if retry:
            delay = self._timed(self.queue.retry, each)
            assert (delay is None) == self.working[each]
            if delay is not None and not self.full(each.cluster, self.delayed[each.cluster]):
                self.delayed[each.cluster].add(each)
        self.queue.done(each)
        del self.working[each]
        if each in self.again[each.cluster]:
            self.again[each.cluster].remove(each)
            self.waiting[each.cluster].append(each)
            if each in self.low_again[each.cluster]:
                self.low_again[each.cluster].remove(each)
                self.low[each.cluster].append(each)

    @rule(cluster=CLUSTERS)
    def park(self, cluster):
        self.queue.park(cluster)
        self.parked.add(cluster)

    @rule(cluster=CLUSTERS)
    def unpark(self, cluster):
        self.queue.unpark(cluster)
        self.parked.discard(cluster)
        self.kept.add(cluster)

    @rule(cluster=CLUSTERS)
    def drop(self, cluster):
        thrown = self.queue.drop(cluster)
        assert thrown == len(self.waiting[cluster]) + len(self.delayed[cluster])
        for each in (self.waiting, self.low, self.again, self.low_again, self.delayed):
            each.pop(cluster, None)
        self.parked.discard(cluster)
        self.kept.discard(cluster)
        self.working = {each: gone or each.cluster == cluster for each, gone in self.working.items()}

    @invariant()
    def agrees(self):
        for cluster in "abc":
            assert self.queue.depth(cluster) == len(self.waiting[cluster])
        assert self.queue.idle == (
            not self.working and not any(map(any, (self.waiting.values(), self.again.values(), self.delayed.values())))
        )

    def _timed(self, call, *args):
        async def within():
            return call(*args)

        return self.loop.run_until_complete(within())


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


class Counting(collections.deque):
    """Counts how often a lane moves in the ring."""

    moves = 0

    def popleft(self):
        self.moves += 1
        return super().popleft()


def test_many_light_clusters_do_not_block_the_loop():
    """The queue skips the hundred rounds before the first turn at once, and keeps the shares."""
    queue = FairQueue(weights=lambda cluster: 0.02 if cluster == "double" else 0.01)
    names = [f"light-{number}" for number in range(500)] + ["double"]
    for name, number in itertools.product(names, range(4)):
        queue.add(request(name, number))
    queue._ring = Counting()
    first = drain(queue, count=1)
    # A lane moves once when it is new, and twice in the ring.
    assert queue._ring.moves <= 3 * len(names)
    taken = collections.Counter(each.cluster for each in first + drain(queue, count=2 * len(names)))
    assert taken.pop("double") in {3, 4}
    assert len(taken) == len(names) - 1
    assert set(taken.values()) <= {1, 2}


class Odd(ItemBackoff):
    """A rate limiter whose methods raise."""

    def next_delay(self, request):
        raise KeyError(request)

    def forget(self, request):
        raise KeyError(request)

    def drop(self, cluster):
        raise KeyError(cluster)


class Nonsense(ItemBackoff):
    def next_delay(self, request):
        return float("nan")


@pytest.mark.parametrize("limiter", [Odd(), Nonsense()], ids=["raises", "nonsense"])
async def test_failing_rate_limiter_falls_back_to_default_delay(limiter, caplog):
    queue = FairQueue(rate_limiter=limiter)
    queue.add(request("a"))
    for failures in (1, 2):
        taken = queue.take()
        assert 0 < queue.retry(taken) < 0.02
        assert queue.failures(taken) == failures
        queue.done(taken)
        queue.add(taken)
    queue.forget(request("a"))
    assert queue.failures(request("a")) == 0
    queue.drop("a")
    assert caplog.text.count("failed to ask the rate limiter") == 1
