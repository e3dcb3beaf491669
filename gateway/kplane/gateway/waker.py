"""Waker: holds requests to sleeping control planes and during write holds, and requests wake-ups."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from kplane.gateway.clients import NOBODY, Client, ClientLimits
from kplane.gateway.envoy.replies import UNKNOWN_PATH
from kplane.gateway.errors import Declined
from kplane.gateway.routes import Hold, Route, Sleep
from kplane.provider import ProviderError
from kplane.provider.aio.backoff import Backoff
from kplane.provider.aio.cancellation import end_tasks

__all__ = ["PATIENCE_SECONDS", "Request", "Waker"]

logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 60.0
"""Maximum seconds that a request waits for its control plane."""
_FAILED_PATIENCE: Final = timedelta(seconds=3)
"""Maximum wait for a control plane in phase Failed, counted from the wake-up request: a wake-up may still succeed."""
_EACH: Final = 100
_ALL: Final = 1000
"""Maximum numbers of waiting requests: `_EACH` of a control plane, and `_ALL` of all control planes together. Envoy
takes up to 0.6 MiB of memory for the body of each request.
"""
_SHARE: Final = 8
"""A sleeping control plane may take the eighth part of the places that are left of `_ALL`."""
_EACH_HELD: Final = 500
"""Maximum number of waiting requests of a control plane with a write hold, which is in use."""
_EACH_UNVERIFIED: Final = 50
"""Maximum number of waiting requests of a control plane without a verified credential. Strangers can make up such
credentials, and must leave places to its users.
"""
_EACH_CLIENT: Final = 500
"""Maximum number of waiting requests of a client address: half of `_ALL`. Many clients may share an address."""
_ASKING_SECONDS: Final = 10.0
_BETWEEN_CLOCKS: Final = timedelta(microseconds=1)

Request = Callable[[Route, datetime], Awaitable[None]]
"""Asynchronous function that requests a wake-up in the management cluster, with the time of the request."""


@dataclass(slots=True, eq=False)
class _Held:
    """Waiting requests of a control plane."""

    waiting: int = 0
    unverified: int = 0
    """Number of waiting requests without a verified credential."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Event that is set after a change of the control plane's state, and then replaced by a new event."""
    asking: asyncio.Task[None] | None = None

    def tell(self) -> None:
        news, self.news = self.news, asyncio.Event()
        news.set()


class Waker:
    """Tracks which control planes sleep, and which of them Envoy can reach.

    However many requests wait for a control plane, a single task requests the wake-up.
    """

    def __init__(
        self,
        request: Request,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        failed_patience: timedelta = _FAILED_PATIENCE,
        each: int = _EACH,
        each_held: int = _EACH_HELD,
        each_unverified: int = _EACH_UNVERIFIED,
        all_together: int = _ALL,
        clients: ClientLimits | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        backoff: Callable[[], Backoff] = lambda: Backoff(initial_seconds=2.0, maximum_seconds=15.0),
    ) -> None:
        """Create a waker without routes.

        `patience_seconds` is the maximum wait of a request, and `failed_patience` the maximum wait for a failed control
        plane. `each`, `each_held`, `each_unverified`, `all_together` and `clients` limit the number of waiting
        requests.
        """
        self._request = request
        self._patience_seconds = patience_seconds
        self._failed_patience = failed_patience
        self._each = each
        self._each_held = each_held
        self._each_unverified = each_unverified
        self._all = all_together
        self._clients = clients or ClientLimits(waiting=_EACH_CLIENT)
        self._clock = clock
        self._backoff = backoff
        self._routes: dict[str, Route] = {}
        self._reached: frozenset[str] = frozenset()
        self._held: dict[str, _Held] = {}
        self._closed = False
        self.changed: Callable[[], None] = lambda: None
        """Callback after a change of `wants`, which runs when a wake-up begins or ends."""

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return sum(held.waiting for held in self._held.values())

    def wants(self, route: Route) -> bool:
        """Return whether Envoy needs a route to a control plane, because it is awake or wakes up."""
        return route.upstream is not None and (route.asleep is None or self._is_woken(route.key))

    def is_in_force(self, hold: Hold) -> bool:
        """Return whether a hold has not expired."""
        return hold.until > self._clock()

    def know(self, routes: Iterable[Route]) -> None:
        """Replace all routes, and notify waiting requests of changed routes."""
        before, self._routes = self._routes, {route.key: route for route in routes}
        for key, held in self._held.items():
            if before.get(key) != self._routes.get(key):
                held.tell()

    def learn(self, changed: Mapping[str, Route | None]) -> None:
        """Update changed routes, by key, and notify their waiting requests. None removes a route."""
        for key, route in changed.items():
            if route is None:
                self._routes.pop(key, None)
            else:
                self._routes[key] = route
            if (held := self._held.get(key)) is not None:
                held.tell()

    def reach(self, keys: Iterable[str]) -> None:
        """Set the keys of control planes that Envoy can reach, and notify all waiting requests."""
        self._reached = frozenset(keys)
        for held in self._held.values():
            held.tell()

    async def passage(self, key: str, *, change: bool = False, client: Client = NOBODY, verified: bool = True) -> Route:
        """Wait until a request can be passed on to its control plane, and return the route.

        Wakes the control plane if it sleeps. `change` is True for a mutating request, which also waits for the end of a
        write hold. `verified` is False if the gateway cannot verify the credential of the request: only a few such
        requests may wait. Raises Declined if too many requests wait, or if the control plane is not available in time.
        Also raises Declined if the control plane does not exist, or if the waker is closed.
        """
        if not self._is_settled(key, change=change):
            await self._wait(key, change=change, client=client, verified=verified)
        route = self._routes.get(key)
        if self._closed:
            raise Declined(503, "the gateway starts again; retry")
        if route is None:
            raise Declined(404, UNKNOWN_PATH)
        if route.upstream is None:
            raise Declined(503, route.why_absent or "this control plane has no API server now")
        return route

    async def aclose(self) -> None:
        """End all waits and all wake-up requests."""
        self._closed = True
        asking = [held.asking for held in self._held.values() if held.asking is not None]
        for held in self._held.values():
            held.tell()
        await end_tasks(asking)

    async def _wait(self, key: str, *, change: bool, client: Client, verified: bool) -> None:
        loop, began = asyncio.get_running_loop(), self._clock()
        latest = loop.time() + self._patience_seconds
        with self._clients.place(client, verified=verified), self._place(key, verified=verified) as held:
            try:
                async with asyncio.timeout_at(latest) as deadline:
                    while not self._is_settled(key, change=change):
                        if held.asking is None and self._sleep_of(key) is not None:
                            self._clients.wake(client)
                            held.asking = asyncio.create_task(self._wake(key, held), name=f"wake {key}")
                            self.changed()
                        deadline.reschedule(min(latest, loop.time() + self._left_for_failed(key, began=began)))
                        await self._news(key, held)
            except TimeoutError:
                sleep = self._sleep_of(key)
                if sleep is not None and sleep.failed:
                    message = f"this control plane cannot wake: {sleep.problem or 'its phase is Failed'}"
                    raise Declined(503, message, is_retried=False) from None
                if sleep is not None and sleep.crowded:
                    raise Declined(429, "as many control planes are awake as may be; retry") from None
                reason = "did not start" if sleep is not None else "was not to be used"
                message = f"the API server of this control plane {reason} within {self._patience_seconds:.0f} s"
                problem = f": {sleep.problem}" if sleep is not None and sleep.problem else ""
                raise Declined(503, message + problem) from None

    async def _news(self, key: str, held: _Held) -> None:
        """Wait for a change of the control plane's state, or for the expiry of its write hold."""
        remaining = self._held_for(key)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(remaining or None):
                await held.news.wait()

    @contextlib.contextmanager
    def _place(self, key: str, *, verified: bool) -> Iterator[_Held]:
        held = self._held.get(key, _Held())
        limit = self._each_held if self._held_for(key) else self._each
        # The fewer places are left, the fewer a single control plane may take. So a flood of requests leaves room for
        # other control planes.
        places = self._all - self.waiting
        if held.waiting >= min(limit, places if self._held_for(key) else places / _SHARE):
            raise Declined(429, "too many requests wait for this control plane")
        if not verified and held.unverified >= self._each_unverified:
            raise Declined(429, "too many requests without a verified credential wait for this control plane")
        self._held[key] = held
        held.waiting += 1
        held.unverified += not verified
        try:
            yield held
        finally:
            held.waiting -= 1
            held.unverified -= not verified
            self._forget(key, held)

    async def _wake(self, key: str, held: _Held) -> None:
        """Request wake-ups until the control plane is awake or no request waits for it."""
        loop, backoff = asyncio.get_running_loop(), self._backoff()
        since, next_request = None, 0.0
        try:
            while held.waiting and (sleep := self._sleep_of(key)) is not None:
                news = held.news
                if since != sleep.since or loop.time() >= next_request:
                    since = sleep.since
                    await self._ask(self._routes[key], sleep)
                    next_request = loop.time() + backoff.next_delay()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(next_request):
                        await news.wait()
        finally:
            held.asking = None
            self._forget(key, held)
            self.changed()

    async def _ask(self, route: Route, sleep: Sleep) -> None:
        """Request the end of this sleep, unless that was done already. Logs a failure; a later call retries."""
        now = self._clock()
        if sleep.is_asked(now):
            return
        try:
            async with asyncio.timeout(_ASKING_SECONDS):
                await self._request(route, max(now, sleep.since + _BETWEEN_CLOCKS))
        except (ProviderError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            logger.warning("failed to ask control plane %s to wake: %s; asking again", sleep.name, reason)
        else:
            logger.info("asked control plane %s to wake", sleep.name)

    def _sleep_of(self, key: str) -> Sleep | None:
        route = self._routes.get(key)
        return route.asleep if route is not None and route.upstream is not None else None

    def _is_woken(self, key: str) -> bool:
        held = self._held.get(key)
        return held is not None and held.asking is not None

    def _left_for_failed(self, key: str, *, began: datetime) -> float:
        """Return the remaining seconds that a request waits for a failed control plane; infinity if it has not failed.

        `began` is the start of the request. The operator retries after a wake-up request, so an earlier wake-up request
        shortens the wait.
        """
        sleep = self._sleep_of(key)
        if sleep is None or not sleep.failed:
            return math.inf
        asked = sleep.requested if sleep.requested is not None and sleep.is_asked(began) else began
        return max(0.0, (min(asked, began) + self._failed_patience - self._clock()).total_seconds())

    def _held_for(self, key: str) -> float:
        """Return the remaining seconds of the write hold of a control plane; 0 without a hold."""
        route = self._routes.get(key)
        if route is None or route.held is None:
            return 0.0
        return max(0.0, (route.held.until - self._clock()).total_seconds())

    def _is_settled(self, key: str, *, change: bool) -> bool:
        """Return whether a request need not wait: the control plane is reachable, or never will be."""
        route = self._routes.get(key)
        if self._closed or route is None or route.upstream is None:
            return True
        if change and self._held_for(key):
            return False
        return route.asleep is None and key in self._reached

    def _forget(self, key: str, held: _Held) -> None:
        if not held.waiting and held.asking is None and self._held.get(key) is held:
            del self._held[key]
