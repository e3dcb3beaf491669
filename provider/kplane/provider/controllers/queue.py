"""A fair work queue, in which no cluster starves other clusters."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import random
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Final, Generic, TypeVar

from kplane.provider.controllers.lane import Delay, Lane, Taken
from kplane.provider.controllers.rate_limiter import Guarded, ItemBackoff, RateLimiter

__all__ = ["FairQueue"]

log: Final = logging.getLogger(__name__)

R = TypeVar("R", bound=Hashable)

_LIGHTEST: Final = 0.01
_HEAVIEST: Final = 100.0
_RELEASE_SECONDS: Final = 0.5
_UNREACHED_SECONDS: Final = 4.0
_UNREACHED_PER_SECOND: Final = 20
"""Maximum rate at which the requests of a cluster are retried while they wait for an unreachable API server."""
_STALE: Final = 64
"""Number of superseded delays that a heap may hold besides the current delays."""


class FairQueue(Generic[R]):
    """client-go's work queue for an event loop, with a lane for each cluster.

    A request waits in the lane of its attribute `cluster`; requests without this attribute, such as plain keys, share a
    lane. Each lane is first in, first out. A waiting request is not added twice. A request that is added while a worker
    processes it is queued again after `done`, so no two workers process the same request.

    Requests of low priority wait until their lane has no other requests, and otherwise have every 17th turn. The
    priority queue of controller-runtime has no such turn, so changes can starve requests of low priority (its issue
    3496). Adding a waiting request again without low priority raises its priority. As in controller-runtime, a retry
    has the priority of its request.

    Clusters take turns by deficit round robin, in which newly busy clusters go first (RFC 8290, section 4.2, for
    network flows). In each round, workers take two requests of a cluster with weight 2 for each request of a cluster
    with weight 1. `weights` returns the weight of a cluster, which is clamped to 0.01 to 100. The queue asks for the
    weight whenever an idle cluster has work again. At most `per_cluster` requests of a cluster are processed at once.

    The requests of a parked cluster, which is not ready, wait until `unpark`. For a cluster that was never unparked,
    and may never be ready, at most `parked_limit` requests wait. Further requests are refused, logged and counted by
    `refused`.

    A cluster is suspended while its API server cannot be reached, so its requests wait instead of failing. Shortly
    after `resume`, requests that failed for this reason are added at once, and their backoff is reset. A server that no
    feed observes suspends no cluster, so requests that fail because of it are retried at least every 4 s, or less often
    if they are many. Tests replace `uniform`.
    """

    def __init__(
        self,
        *,
        weights: Callable[[str], float] | None = None,
        per_cluster: int | None = None,
        rate_limiter: RateLimiter[R] | None = None,
        parked_limit: int = 10_000,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._weights = weights
        self._per_cluster = per_cluster if per_cluster is not None else 1 << 62
        self._parked_limit = parked_limit
        self._uniform = uniform
        self._limiter: RateLimiter[R] = Guarded(rate_limiter) if rate_limiter is not None else ItemBackoff()
        self._lanes: dict[str, Lane[R]] = {}
        # A lane is in at most one of the two rings; in `_fresh` for its first turn only.
        self._fresh: deque[Lane[R]] = deque()
        self._ring: deque[Lane[R]] = deque()
        self._order = itertools.count()
        self._notify: Callable[[], None] = _ignore
        self._closed = False
        self._warned_weight = False
        self.refused = 0
        """Number of requests refused because too many wait for a cluster that is not ready."""
        self.adds = 0
        """Number of added requests that did not wait already."""
        self.retries = 0
        """Number of requests added with a delay."""

    def __len__(self) -> int:
        """Return the number of waiting requests, including requests of parked clusters."""
        return sum(lane.depth for lane in self._lanes.values())

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def idle(self) -> bool:
        """Whether no request waits, is delayed, or is processed."""
        return not any(lane.dirty or lane.processing or lane.delayed for lane in self._lanes.values())

    def on_ready(self, notify: Callable[[], None] | None) -> None:
        """Call `notify` when a request can be taken after none could, and when the queue closes."""
        self._notify = notify if notify is not None else _ignore

    def depth(self, cluster: str) -> int:
        """Return the number of waiting requests of a cluster."""
        lane = self._lanes.get(cluster)
        return lane.depth if lane is not None else 0

    def depths(self) -> Mapping[str, int]:
        """Return the number of waiting requests by cluster."""
        return {name: lane.depth for name, lane in self._lanes.items()}

    def add(self, request: R, *, low_priority: bool = False) -> None:
        """Add a request to its lane."""
        if self._closed:
            return
        cluster = getattr(request, "cluster", "")
        lane = self._lanes.get(cluster) or self._lane(cluster)
        was_low = lane.dirty.get(request)
        if was_low is not None:
            if was_low and not low_priority:
                lane.dirty[request] = False
                lane.prefer(request)
            return
        if lane.parked and self._full(lane, len(lane.dirty)):
            return
        lane.dirty[request] = low_priority
        self.adds += 1
        if request not in lane.processing:
            lane.append(request, low_priority=low_priority)
            if not lane.in_ring:
                self._offer(lane)

    def add_after(self, request: R, seconds: float = 0.0, *, low_priority: bool = False) -> None:
        """Add a request in `seconds`, or now; the earliest of several delays for a request counts."""
        if seconds <= 0:
            self.add(request, low_priority=low_priority)
            return
        if self._closed:
            return
        lane = self._lane(_cluster_of(request))
        due = asyncio.get_running_loop().time() + seconds
        pending = lane.delayed.get(request)
        low_priority = low_priority and (pending is None or pending.low_priority)
        if pending is not None and pending.due <= due:
            lane.delayed[request] = Delay(pending.due, low_priority)
            return
        if lane.parked and pending is None and self._full(lane, len(lane.delayed)):
            return
        lane.delayed[request] = Delay(due, low_priority)
        self.retries += 1
        heapq.heappush(lane.heap, (due, next(self._order), request))
        if len(lane.heap) > 2 * len(lane.delayed) + _STALE:
            lane.heap = [(delay.due, next(self._order), delayed) for delayed, delay in lane.delayed.items()]
            heapq.heapify(lane.heap)
        self._set_timer(lane)

    def take(self) -> R | None:
        """Take the next request; `done(request)` must follow. Returns None if there is none now."""
        turned = 0
        while ring := self._fresh or self._ring:
            lane = ring[0]
            held = lane.parked or lane.suspended or len(lane.processing) >= self._per_cluster
            if held or not (lane.waiting or lane.low):
                ring.popleft()
                # An idle lane stays for a round: otherwise a cluster with one request at a time always goes first.
                lane.in_ring = ring is self._fresh
                if lane.in_ring:
                    self._ring.append(lane)
            elif lane.deficit < 1.0:
                ring.popleft()
                lane.deficit += lane.weight
                self._ring.append(lane)
                turned += 1
                if turned > len(self._ring):
                    self._skip_rounds()
                    turned = 0
            else:
                lane.deficit -= 1.0
                request = lane.pop()
                low_priority = lane.dirty.pop(request)
                if lane.unreached:
                    # The attempt that begins now decides again whether the request waits for a server.
                    lane.unreached.discard(request)
                lane.processing[request] = Taken(lane.generation, low_priority)
                return request
        return None

    def _skip_rounds(self) -> None:
        """Skip the rounds in which no lane of the ring has a turn: light lanes need up to a hundred rounds."""
        rounds = min(math.ceil((1.0 - lane.deficit) / lane.weight) for lane in self._ring) - 1
        if rounds > 0:
            for lane in self._ring:
                lane.deficit += rounds * lane.weight

    def done(self, request: R) -> None:
        """Finish the processing of a request, whether the reconcile succeeded or failed."""
        lane = self._lanes[getattr(request, "cluster", "")]
        del lane.processing[request]
        again = lane.dirty.get(request)
        if again is not None:
            lane.append(request, low_priority=again)
        if (lane.waiting or lane.low) and not lane.in_ring:
            # The lane left the ring at the limit of its running requests, so it is not a newly busy lane.
            self._offer(lane, fresh=False)
        if not lane.kept:
            self._tidy(lane)

    def requeue(self, request: R, seconds: float) -> None:
        """Add the request of a worker again in `seconds`, with its former priority.

        Has no effect if the cluster was dropped meanwhile.
        """
        low_priority = self._priority_again(request)
        if low_priority is not None:
            self.add_after(request, seconds, low_priority=low_priority)

    def retry(self, request: R) -> float | None:
        """Add the request of a worker again after its backoff, with its former priority.

        Returns the delay in seconds; None, without a retry, if the cluster was dropped since `take`.
        """
        low_priority = self._priority_again(request)
        if low_priority is None:
            return None
        delay = self._limiter.next_delay(request)
        lane = self._lanes.get(_cluster_of(request))
        if lane is not None and lane.suspended:
            lane.unreached.add(request)
        if lane is not None and request in lane.unreached:
            # No feed may observe the server, and then no event ends the delay when the server answers again.
            limit = max(_UNREACHED_SECONDS, len(lane.unreached) / _UNREACHED_PER_SECOND)
            delay = min(delay, limit * self._uniform(0.5, 1.0))
        self.add_after(request, delay, low_priority=low_priority)
        return delay

    def note_unreached(self, request: R) -> None:
        """Record that the request of a worker fails because an API server cannot be reached."""
        lane = self._lanes.get(_cluster_of(request))
        if lane is not None and self._priority_again(request) is not None:
            lane.unreached.add(request)

    def hasten(self, request: R) -> None:
        """Add a delayed request now, with its priority. Has no effect on a request without a delay."""
        lane = self._lanes.get(_cluster_of(request))
        delay = lane.delayed.pop(request, None) if lane is not None else None
        if delay is not None:
            self.add(request, low_priority=delay.low_priority)

    def failures(self, request: R) -> int:
        """Return the number of retries of the request since `forget`."""
        return self._limiter.failures(request)

    def forget(self, request: R) -> None:
        """Reset the backoff of the request."""
        self._limiter.forget(request)
        lane = self._lanes.get(_cluster_of(request))
        if lane is not None and lane.unreached:
            lane.unreached.discard(request)

    def park(self, cluster: str) -> None:
        """Keep the requests of a cluster waiting until `unpark` or `drop`."""
        self._lane(cluster).parked = True

    def unpark(self, cluster: str) -> None:
        """Let workers take the requests of a cluster, and keep its lane until `drop`."""
        lane = self._lane(cluster)
        lane.kept, lane.parked, lane.warned_full = True, False, False
        if (lane.waiting or lane.low) and not lane.in_ring:
            self._offer(lane)

    def parked(self) -> list[str]:
        """Return the names of parked clusters."""
        return [name for name, lane in self._lanes.items() if lane.parked]

    def suspend(self, cluster: str) -> None:
        """Keep the requests of a cluster with an unreachable API server waiting until `resume` or `drop`."""
        lane = self._lane(cluster)
        lane.suspended = True
        lane.stop_release()

    def resume(self, cluster: str) -> None:
        """End the suspension of a cluster after a random fraction of a second, which spreads the load."""
        lane = self._lanes.get(cluster)
        if lane is not None and lane.suspended and lane.release is None:
            delay = self._uniform(0, _RELEASE_SECONDS)
            lane.release = asyncio.get_running_loop().call_later(delay, self._release, lane)

    def suspended(self) -> list[str]:
        """Return the names of suspended clusters."""
        return [name for name, lane in self._lanes.items() if lane.suspended]

    def drop(self, cluster: str) -> int:
        """Drop the waiting and delayed requests of a cluster and their backoffs; return the number of requests.

        Takes constant time. Workers finish their requests, and cannot requeue or retry them.
        """
        lane = self._lanes.get(cluster)
        if lane is None:
            return 0
        dropped = lane.drop()
        self._limiter.drop(cluster)
        self._tidy(lane)
        return dropped

    def close(self) -> None:
        """Accept no more requests: waiting ones can still be taken, delayed ones are dropped."""
        if self._closed:
            return
        self._closed = True
        for lane in self._lanes.values():
            lane.delayed, lane.heap = {}, []
            lane.stop_timer()
            lane.stop_release()
        self._notify()

    def _release(self, lane: Lane[R]) -> None:
        lane.release, lane.suspended = None, False
        unreached, lane.unreached = lane.unreached, set()
        for request in unreached:
            self._limiter.forget(request)
            self.hasten(request)
        for other in tuple(self._lanes.values()):
            # Requests of other clusters may have failed because of this API server or another: their backoff stays.
            for request in () if other.suspended else tuple(other.unreached):
                self.hasten(request)
        if (lane.waiting or lane.low) and not lane.in_ring:
            self._offer(lane)
        if not lane.kept:
            self._tidy(lane)

    def _lane(self, cluster: str) -> Lane[R]:
        lane = self._lanes.get(cluster)
        if lane is None:
            lane = self._lanes[cluster] = Lane(cluster)
        return lane

    def _priority_again(self, request: R) -> bool | None:
        """Return whether the request of a worker has low priority; None if its cluster was dropped since `take`."""
        lane = self._lanes.get(_cluster_of(request))
        taken = lane.processing.get(request) if lane is not None else None
        if lane is None or taken is None:
            return False
        return taken.low_priority if taken.generation == lane.generation else None

    def _full(self, lane: Lane[R], count: int) -> bool:
        if lane.kept or count < self._parked_limit:
            return False
        self.refused += 1
        if not lane.warned_full:
            lane.warned_full = True
            log.warning(
                "dropping requests for cluster %r: it is not ready, and %d requests wait for it already",
                lane.name,
                count,
            )
        return True

    def _tidy(self, lane: Lane[R]) -> None:
        # Lanes of unknown clusters must not fill the memory.
        if not (lane.dirty or lane.processing or lane.delayed or lane.parked or lane.suspended):
            del self._lanes[lane.name]

    def _offer(self, lane: Lane[R], *, fresh: bool = True) -> None:
        """Put a lane with waiting requests into a ring if workers may take them; `take` removes idle lanes."""
        if lane.parked or lane.suspended or len(lane.processing) >= self._per_cluster:
            return
        lane.in_ring = True
        if fresh:
            if self._weights is not None:
                lane.weight = self._weight(lane.name)
            lane.deficit = lane.weight
            self._fresh.append(lane)
        else:
            self._ring.append(lane)
        self._notify()

    def _weight(self, cluster: str) -> float:
        assert self._weights is not None  # noqa: S101 - only `_offer` calls it
        try:
            return min(_HEAVIEST, max(_LIGHTEST, float(self._weights(cluster))))
        except Exception as error:
            # Log once: each burst of work asks for the weight again.
            if not self._warned_weight:
                self._warned_weight = True
                log.warning("failed to get the weight of cluster %r; using 1", cluster, exc_info=error)
            return 1.0

    def _set_timer(self, lane: Lane[R]) -> None:
        if not lane.heap:
            lane.stop_timer()
            return
        due = lane.heap[0][0]
        # Do not read `when` of the handle: uvloop returns a handle without `when` for delays near zero.
        if lane.timer is None or lane.timer_due > due:
            lane.stop_timer()
            lane.timer_due = due
            loop = asyncio.get_running_loop()
            # Timers of uvloop have a resolution of a millisecond: an early one would need a second timer.
            lane.timer = loop.call_at(due, self._due, lane)

    def _due(self, lane: Lane[R]) -> None:
        lane.timer = None
        now = asyncio.get_running_loop().time() + 0.001
        while lane.heap and lane.heap[0][0] <= now:
            due, _, request = heapq.heappop(lane.heap)
            delay = lane.delayed.get(request)
            if delay is not None and delay.due == due:
                del lane.delayed[request]
                self.add(request, low_priority=delay.low_priority)
        self._set_timer(lane)


def _cluster_of(request: Hashable) -> str:
    return getattr(request, "cluster", "")


def _ignore() -> None:
    """Default of `notify`, until `on_ready` sets a callback."""
