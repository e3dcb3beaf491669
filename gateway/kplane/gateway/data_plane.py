"""Envoy with the authorizer beside it, as one thing that serves the routes that it is given."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import aiohttp

from kplane.gateway.administration import Administration
from kplane.gateway.authorizer import Authorizer
from kplane.gateway.envoy.bodies import limits_of_bodies
from kplane.gateway.envoy.bootstrap import MEMORY_BYTES
from kplane.gateway.envoy.clusters import changes_in_flight
from kplane.gateway.envoy.listener import Serving
from kplane.gateway.files import Publisher, Validator, Versions
from kplane.gateway.holder import Holder
from kplane.gateway.in_flight import ChangesInFlight
from kplane.gateway.program import ENVOY, INOTIFY_INSTANCES, envoy_component
from kplane.gateway.routes import Hold, Route
from kplane.gateway.waiting_room import waiting_room
from kplane.gateway.waker import Waker
from kplane.workloads import Phase, Runtime, inotify_shortage

__all__ = ["DataPlane"]

logger = logging.getLogger(__name__)

_CONFIRMED_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.05
_START_SECONDS: Final = 20.0
"""After so long without an answer, an Envoy of another container is not about to start."""
_PROBE_SECONDS: Final = 30.0
"""Between two looks for a shortage of inotify instances."""
_MAX_NAMED: Final = 20
"""Control planes whose changes in flight are named at one time: they are in one Lease."""


class DataPlane:
    """Serves routes. It is an async context manager by `running`, and one task at a time calls `apply`."""

    def __init__(
        self,
        directory: Path,
        *,
        validate: Validator,
        program: Path,
        runtime: Runtime | None,
        waker: Waker,
        workers: int = 1,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        """`directory` is the gateway's alone. Without `runtime`, Envoy runs as a container of its own."""
        self._publisher = Publisher(directory, validate=validate, memory_bytes=memory_bytes)
        self._authorizer = Authorizer(waker)
        self._holder = Holder(waker)
        self._waker = waker
        self._administration: Administration | None = None
        self._program = program
        self._runtime = runtime
        self._workers = workers
        self._memory_bytes = memory_bytes
        self._published: Versions | None = None
        self._reached: dict[str, tuple[str, int]] = {}
        """By key, the addresses that Envoy has confirmed."""
        self._moving: set[str] = set()
        """Keys of those that have another address now."""
        self._held: Mapping[str, Hold] = {}
        """By key, those of which Envoy has the authorizer asked about changes."""
        self._confirmed: Sequence[Route] = ()
        self._told: Callable[[], None] = lambda: None
        self._changes: ChangesInFlight | None = None
        self._in_flight: Mapping[str, Mapping[str, Any]] = {}
        self._instead: Mapping[str, Route] = {}
        """By key, what is served of those whose route Envoy refuses."""
        self._silent_since: float | None = None
        """Time from which Envoy has not answered; None: it answered last time."""
        self._shortage = ""
        """Of inotify instances, as of the last look since then."""
        self._shortage_expires_at = 0.0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have authorizer and Envoy run. Until the first `apply`, Envoy serves by the last good files, if there are."""
        layout = self._publisher.layout
        await self._publisher.prepare()
        async with (
            Administration(layout.administration) as self._administration,
            self._authorizer.listening(Path(layout.authorizer)),
            self._holder.listening(Path(layout.holder)),
            waiting_room(Path(layout.waiting_room)),
        ):
            self._changes = ChangesInFlight(Path(layout.changes), administration=self._administration)
            await self._start()
            yield

    @property
    def waiting(self) -> int:
        """Number of requests and connections that wait for a control plane."""
        return self._waker.waiting

    def on_wake(self, changed: Callable[[], None]) -> None:
        """Have `changed` called when `wanted` may have another answer."""
        self._waker.changed = changed

    def on_hold(self, changed: Callable[[], None]) -> None:
        """Have `changed` called when `quiet` may have another answer."""
        self._told = changed

    def on_unknown(self, is_current: Callable[[], bool]) -> None:
        """Have `is_current` tell whether the routes are all that there are, when a request is for none of them."""
        self._authorizer.is_current = is_current

    def know(self, routes: Iterable[Route]) -> None:
        """Take up which of these routes sleep, at once: requests wait for that."""
        served = [self._served(route) for route in routes]
        # Requests wait until Envoy knows the present address.
        self._moving = {route.key for route in served if self._is_moving(route)}
        self._waker.reach(self._reached.keys() - self._moving)
        self._authorizer.serve(served)

    def update(self, changed: Mapping[str, Route | None]) -> None:
        """Take up those routes that have changed, by path; None: there is none any more."""
        served = {path: self._served(route) if route is not None else None for path, route in changed.items()}
        if moving := {route.key for route in served.values() if route is not None and self._is_moving(route)}:
            self._moving |= moving
            self._waker.reach(self._reached.keys() - self._moving)
        self._authorizer.update(served)

    def wanted(self, routes: Iterable[Route]) -> list[Route]:
        """Return those that Envoy is to know now: of control planes that are awake or wake, and all with host names.

        Envoy finds what a host name leads to by that name alone, so that each has an entry, also while it sleeps.
        """
        return [route for route in routes if self._waker.wants(route) or (route.host and route.upstream is not None)]

    def concerns_envoy(self, changed: Mapping[str, Route | None]) -> bool:
        """Tell whether Envoy itself serves one of these routes: it asks the authorizer about the others."""
        routes = [route for route in changed.values() if route is not None]
        return bool(self.wanted(routes)) or any(route.key in self._reached for route in routes)

    async def apply(self, routes: Sequence[Route], *, serving: Serving) -> Mapping[str, str]:
        """Serve these routes and no others, and return when that is so, or Envoy does not confirm it in time.

        Returns by key what cannot be served. Raises ConfigurationRejected if the listener is refused.
        """
        wanted = self.wanted(routes)
        # A hold that ends where a control plane has moved ends when Envoy knows the way there.
        first = [self._still_held(route) for route in wanted]
        refused = await self._publish(first, known=routes, serving=serving)
        if first != wanted and not any(self._is_moving(route) for route in wanted):
            refused = await self._publish(wanted, known=routes, serving=serving)
        return refused

    async def _publish(self, wanted: Sequence[Route], *, known: Sequence[Route], serving: Serving) -> Mapping[str, str]:
        # What Envoy is about to forget is not relied on any more.
        keys = {route.key for route in wanted}
        self._reached = {key: address for key, address in self._reached.items() if key in keys}
        self._confirmed = ()
        self.know(known)
        published = await self._publisher.publish(wanted, serving=serving, bodies=limits_of_bodies(known))
        self._held = {route.key: route.held for route in published.routes if route.held is not None}
        self._instead = {route.key: route for route in published.routes if route.key in published.refused}
        self._published = published.versions
        await self._start()
        confirmed = await self._confirm()
        if confirmed and published.leaving:
            self._published = await self._publisher.prune(published.versions)
            confirmed = await self._confirm()
        if confirmed:
            self._confirmed = published.routes
            self._reached = {
                route.key: route.upstream.address for route in published.routes if route.upstream is not None
            }
        self.know(known)
        self._told()
        return published.refused

    async def quiet(self) -> Mapping[str, str]:
        """Return by key the holds that are in force, while no request is in flight there that changes something.

        Raises OSError, aiohttp.ClientError or TimeoutError.
        """
        # By host name, the gateway cannot tell what changes something.
        held = [route for route in self._confirmed if route.held is not None and not route.host]
        if not held or not await self.ready():
            await self._name_changes({}, recording=False)
            return {}
        numbers, present = await self.numbers(), self.held
        counts = {
            route.key: (route.held, changes_in_flight(route, numbers))
            for route in held
            if route.held is not None and route.held == present.get(route.key)
        }
        await self._name_changes({key: count for key, (_, count) in counts.items() if count}, recording=True)
        return {key: hold.asked for key, (hold, count) in counts.items() if not count}

    @property
    def in_flight(self) -> Mapping[str, Mapping[str, Any]]:
        """By key, what is in flight of control planes whose changes are held, as of the last `quiet`: the number of
        changes, and the oldest of them. Of many control planes, some.
        """
        return self._in_flight

    @property
    def held(self) -> Mapping[str, Hold]:
        """By key, the holds of which Envoy was told and that have not ended by themselves."""
        return {key: hold for key, hold in self._held.items() if self._waker.is_in_force(hold)}

    async def ready(self) -> bool:
        """Whether Envoy takes connections, and serves what it was last told to."""
        return self._published is not None and await self._serves() == self._published

    async def failure(self) -> str:
        """Say why Envoy does not run; empty if it runs, or the cause is not known here."""
        _ = await self._serves()
        if self._silent_since is None:
            return ""
        return "; ".join(part for part in (await self._find_shortage(), self._end()) if part)

    async def _serves(self) -> Versions | None:
        """Return what Envoy serves; None if it does not answer, or is not ready."""
        if self._administration is None:
            return None
        try:
            versions = await self._administration.serves()
        except (OSError, aiohttp.ClientError, TimeoutError):
            self._silent_since = self._silent_since or time.monotonic()
            return None
        self._silent_since, self._shortage, self._shortage_expires_at = None, "", 0.0
        return versions

    async def _find_shortage(self) -> str:
        """Say that inotify instances are missing, as found within the last `_PROBE_SECONDS`.

        A look takes instances for a moment. An Envoy that starts then would lack them, and abort.
        """
        now = time.monotonic()
        if self._runtime is not None:
            is_down = self._runtime.state(ENVOY).phase in {Phase.BACKOFF, Phase.ENDED}
        else:  # in a pod, Envoy is a container of its own with the same user
            is_down = self._silent_since is not None and now - self._silent_since >= _START_SECONDS
        if is_down and now >= self._shortage_expires_at:
            self._shortage_expires_at = now + _PROBE_SECONDS
            self._shortage = await asyncio.to_thread(inotify_shortage, INOTIFY_INSTANCES)
        return self._shortage

    def _end(self) -> str:
        """Return the first line of what the runtime says of an Envoy that ended."""
        state = self._runtime.state(ENVOY) if self._runtime is not None else None
        if state is None or state.phase not in {Phase.BACKOFF, Phase.ENDED, Phase.STARTING} or not state.message:
            return ""
        return f"Envoy {state.message.splitlines()[0].removesuffix('; the end of its log is:')}"

    async def numbers(self) -> Mapping[str, int]:
        """Return what Envoy counts of API servers. Raises OSError, aiohttp.ClientError or TimeoutError."""
        if self._administration is None:
            return {}
        return await self._administration.numbers(r"^cluster\.|\.rate_limited$")

    async def stop(self) -> None:
        """End Envoy, if it runs by this data plane's runtime."""
        if self._runtime is not None:
            await self._runtime.stop(ENVOY)

    async def _name_changes(self, counts: Mapping[str, int], *, recording: bool) -> None:
        """Take up which changes are in flight, given how many there are by key of the control plane."""
        if self._changes is None:
            return
        # Names are for people. A hold counts without them.
        with contextlib.suppress(OSError, aiohttp.ClientError, TimeoutError):
            await self._changes.record(wanted=recording)
        self._changes.look()
        named = sorted(counts)[:_MAX_NAMED]
        self._in_flight = {
            key: {"count": counts[key], "oldest": [change.described for change in self._changes.oldest(key)]}
            for key in named
        }

    def _served(self, route: Route) -> Route:
        instead = self._instead.get(route.key)
        if instead is None:
            return route
        return replace(instead, asleep=route.asleep if instead.upstream is not None else None, held=route.held)

    def _is_moving(self, route: Route) -> bool:
        """Tell whether Envoy knows another address of a control plane."""
        known = self._reached.get(route.key)
        return known is not None and route.upstream is not None and known != route.upstream.address

    def _still_held(self, route: Route) -> Route:
        former = self._held.get(route.key)
        if former is None or route.held is not None or not self._is_moving(route):
            return route
        return replace(route, held=former)

    async def _start(self) -> None:
        if self._runtime is not None:
            component = envoy_component(
                self._program,
                layout=self._publisher.layout,
                workers=self._workers,
                memory_bytes=self._memory_bytes,
            )
            await self._runtime.apply(component)

    async def _confirm(self) -> bool:
        deadline = time.monotonic() + _CONFIRMED_SECONDS
        while time.monotonic() < deadline:
            if await self.ready():
                return True
            await asyncio.sleep(_POLL_SECONDS)
        logger.warning("Envoy has not confirmed the present configuration within %.0f s", _CONFIRMED_SECONDS)
        return False
