"""Data plane: Envoy, and beside it the authorizer, the holder and the waiting room."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import aiohttp

from kplane.gateway.administration import Administration
from kplane.gateway.authorizer import Authorizer
from kplane.gateway.clients import Client
from kplane.gateway.envoy.bodies import limits_of_bodies
from kplane.gateway.envoy.bootstrap import MEMORY_BYTES
from kplane.gateway.envoy.clusters import changes_in_flight
from kplane.gateway.envoy.listener import Serving
from kplane.gateway.files import Publisher, Validator, Versions
from kplane.gateway.holder import Holder
from kplane.gateway.in_flight import ChangesInFlight
from kplane.gateway.probes import Probes
from kplane.gateway.program import ENVOY, INOTIFY_INSTANCES, envoy_component
from kplane.gateway.routes import Hold, Route
from kplane.gateway.silence import Silence
from kplane.gateway.waiting_room import waiting_room
from kplane.gateway.waker import Waker
from kplane.workloads import Phase, Runtime, inotify_shortage

__all__ = ["DataPlane"]

logger = logging.getLogger(__name__)

_CONFIRMED_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.05
_START_SECONDS: Final = 20.0
"""Seconds without a response after which an Envoy in another container counts as down, and no longer as starting."""
_PROBE_SECONDS: Final = 30.0
"""Seconds between two probes for a shortage of inotify instances."""
_MAX_NAMED: Final = 20
"""Maximum number of control planes whose mutating requests in flight are listed, since the list is part of a Lease."""


class DataPlane:
    """Serves routes while the context `running` is open. Only one task at a time may call `apply`."""

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
        """Create a data plane.

        `directory` belongs to this gateway alone. Without `runtime`, Envoy runs in a container of its own.
        """
        self._publisher = Publisher(directory, validate=validate, memory_bytes=memory_bytes)
        self._authorizer = Authorizer(waker)
        self._probes = Probes()
        self._holder = Holder(waker, is_ready=self._probes.is_ready)
        self._waker = waker
        self._administration: Administration | None = None
        self._program = program
        self._runtime = runtime
        self._workers = workers
        self._memory_bytes = memory_bytes
        self._published: Versions | None = None
        self._reached: dict[str, tuple[str, int]] = {}
        """Addresses that Envoy has confirmed, by key of the control plane."""
        self._moving: set[str] = set()
        """Keys of control planes with a new address that Envoy has not confirmed."""
        self._held: Mapping[str, Hold] = {}
        """Write holds in Envoy's configuration, by key. Envoy asks the authorizer about mutating requests to these
        control planes.
        """
        self._confirmed: Sequence[Route] = ()
        self._told: Callable[[], None] = lambda: None
        self._changes: ChangesInFlight | None = None
        self._in_flight: Mapping[str, Mapping[str, Any]] = {}
        self._instead: Mapping[str, Route] = {}
        """Routes that are served in place of routes that Envoy rejects, by key."""
        self._silence = Silence()
        self._shortage = ""
        """Message about a shortage of inotify instances, as of the last probe; empty without a shortage."""
        self._shortage_expires_at = 0.0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the authorizer, the holder, the waiting room and Envoy while the context is open.

        Until the first `apply`, Envoy serves by the last valid files, if any exist.
        """
        layout = self._publisher.layout
        await self._publisher.prepare()
        async with (
            Administration(layout.administration) as self._administration,
            self._authorizer.listening(Path(layout.authorizer)),
            contextlib.aclosing(self._probes),
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
        """Set the callback after a change of `wanted`."""
        self._waker.changed = changed

    def on_hold(self, changed: Callable[[], None]) -> None:
        """Set the callback after a change of `quiet`."""
        self._told = changed

    def on_refusal(self, is_current: Callable[[], bool], catch_up: Callable[[Client], Awaitable[bool]]) -> None:
        """Set the callbacks before a refusal of a credential, and for requests to unknown paths.

        `is_current` returns whether this replica follows the management cluster. `catch_up` waits until the routes
        include all control planes that a client can know, and returns False if it cannot tell.
        """
        self._authorizer.is_current = is_current
        self._authorizer.catch_up = catch_up

    def know(self, routes: Iterable[Route]) -> None:
        """Replace all routes in the authorizer and the waker.

        Call this at once after a change, since requests wait for the end of a sleep.
        """
        served = [self._served(route) for route in routes]
        # Requests to a moved control plane wait until Envoy has the present address.
        self._moving = {route.key for route in served if self._is_moving(route)}
        self._waker.reach(self._reached.keys() - self._moving)
        self._authorizer.serve(served)

    def update(self, changed: Mapping[str, Route | None]) -> None:
        """Update changed routes, by path, in the authorizer and the waker. None removes a route."""
        served = {path: self._served(route) if route is not None else None for path, route in changed.items()}
        if moving := {route.key for route in served.values() if route is not None and self._is_moving(route)}:
            self._moving |= moving
            self._waker.reach(self._reached.keys() - self._moving)
        self._authorizer.update(served)

    def wanted(self, routes: Iterable[Route]) -> list[Route]:
        """Return the routes that Envoy needs now.

        Envoy needs the routes of awake or waking control planes, and of all control planes with a host name. Envoy
        finds the cluster of a host name by this name alone. So a control plane with a host name has a cluster in Envoy
        even while it sleeps.
        """
        return [route for route in routes if self._waker.wants(route) or (route.host and route.upstream is not None)]

    def concerns_envoy(self, changed: Mapping[str, Route | None]) -> bool:
        """Return whether Envoy itself serves any of the changed routes.

        It asks the authorizer about all other routes.
        """
        routes = [route for route in changed.values() if route is not None]
        return bool(self.wanted(routes)) or any(route.key in self._reached for route in routes)

    async def apply(self, routes: Sequence[Route], *, serving: Serving) -> Mapping[str, str]:
        """Publish these routes in place of all former routes, and wait for Envoy's confirmation.

        Returns the reasons of rejected routes, by key. Also returns if Envoy does not confirm the routes in time:
        `ready` is False then. Raises ConfigurationRejected if Envoy rejects the listener.
        """
        desired = self.wanted(routes)
        # If a control plane moves, its write hold must not end before Envoy has the new address. So the first
        # publication keeps the hold.
        initial = [self._still_held(route) for route in desired]
        refused = await self._publish(initial, known=routes, serving=serving)
        if initial != desired and not any(self._is_moving(route) for route in desired):
            refused = await self._publish(desired, known=routes, serving=serving)
        return refused

    async def _publish(self, wanted: Sequence[Route], *, known: Sequence[Route], serving: Serving) -> Mapping[str, str]:
        # Envoy is about to remove the other clusters. The waker must not pass requests to them any more.
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
        """Return the write holds that are in force with no mutating request in flight, as `Hold.asked` by key.

        Raises OSError, aiohttp.ClientError or TimeoutError if Envoy does not respond.
        """
        # TLS to host names passes through, so the gateway cannot recognize mutating requests.
        held = [route for route in self._confirmed if route.held is not None and not route.host]
        if not held or not await self.ready():
            await self._name_changes({}, recording=False)
            return {}
        numbers, current = await self.numbers(), self.held
        counts = {
            route.key: (route.held, changes_in_flight(route, numbers))
            for route in held
            if route.held is not None and route.held == current.get(route.key)
        }
        await self._name_changes({key: count for key, (_, count) in counts.items() if count}, recording=True)
        return {key: hold.asked for key, (hold, count) in counts.items() if not count}

    @property
    def in_flight(self) -> Mapping[str, Mapping[str, Any]]:
        """Mutating requests in flight to control planes with a write hold, by key, as of the last `quiet`.

        A value has the `count` of requests and the `oldest` requests. At most `_MAX_NAMED` control planes are listed.
        """
        return self._in_flight

    @property
    def held(self) -> Mapping[str, Hold]:
        """Write holds in Envoy's configuration that have not expired, by key."""
        return {key: hold for key, hold in self._held.items() if self._waker.is_in_force(hold)}

    async def ready(self) -> bool:
        """Return whether Envoy accepts connections, and uses the files that were published last."""
        return self._published is not None and await self._serves() == self._published

    async def failure(self) -> str:
        """Return the reason why Envoy does not run; empty if Envoy responds or the reason is unknown."""
        _ = await self._serves()
        if self._silence.seconds is None:
            return ""
        return "; ".join(part for part in (await self._find_shortage(), self._end()) if part)

    async def _serves(self) -> Versions | None:
        """Return the versions of the files that Envoy uses; None if Envoy does not respond or is not ready."""
        if self._administration is None:
            return None
        try:
            versions = await self._administration.serves()
        except (OSError, aiohttp.ClientError, TimeoutError):
            self._silence.note(self._runtime.state(ENVOY).pid if self._runtime is not None else None)
            return None
        self._silence.end()
        self._shortage, self._shortage_expires_at = "", 0.0
        return versions

    async def _find_shortage(self) -> str:
        """Return a message about missing inotify instances, as of the last probe; empty without a shortage.

        A probe takes instances for a moment, and an Envoy that starts at this moment would abort. So probes run only
        while Envoy is down, and at most once in `_PROBE_SECONDS`.
        """
        now = time.monotonic()
        if self._runtime is not None:
            is_down = self._runtime.state(ENVOY).phase in {Phase.BACKOFF, Phase.ENDED}
        else:  # in a pod, Envoy runs in a container of its own as the same user
            is_down = (self._silence.seconds or 0.0) >= _START_SECONDS
        if is_down and now >= self._shortage_expires_at:
            self._shortage_expires_at = now + _PROBE_SECONDS
            self._shortage = await asyncio.to_thread(inotify_shortage, INOTIFY_INSTANCES)
        return self._shortage

    def _end(self) -> str:
        """Return the first line of the runtime's message about an Envoy that ended; empty if Envoy runs."""
        state = self._runtime.state(ENVOY) if self._runtime is not None else None
        if state is None or state.phase not in {Phase.BACKOFF, Phase.ENDED, Phase.STARTING} or not state.message:
            return ""
        return f"Envoy {state.message.splitlines()[0].removesuffix('; the end of its log is:')}"

    async def numbers(self) -> Mapping[str, int]:
        """Return Envoy's statistics of clusters and rate limits.

        Raises OSError, aiohttp.ClientError or TimeoutError if Envoy does not respond.
        """
        if self._administration is None:
            return {}
        return await self._administration.numbers(r"^cluster\.|\.rate_limited$")

    async def stop(self) -> None:
        """Stop Envoy if the runtime of this data plane runs it."""
        if self._runtime is not None:
            await self._runtime.stop(ENVOY)

    async def _name_changes(self, counts: Mapping[str, int], *, recording: bool) -> None:
        """Update `in_flight`.

        `counts` is the number of mutating requests in flight, by key of the control plane.
        """
        if self._changes is None:
            return
        # The list is for people, and a hold is valid without it. So errors are ignored.
        with contextlib.suppress(OSError, aiohttp.ClientError, TimeoutError):
            await self._changes.record(wanted=recording)
        self._changes.look()
        keys = sorted(counts)[:_MAX_NAMED]
        self._in_flight = {
            key: {"count": counts[key], "oldest": [change.described for change in self._changes.oldest(key)]}
            for key in keys
        }

    def _served(self, route: Route) -> Route:
        substitute = self._instead.get(route.key)
        if substitute is None:
            return route
        return replace(substitute, asleep=route.asleep if substitute.upstream is not None else None, held=route.held)

    def _is_moving(self, route: Route) -> bool:
        """Return whether Envoy has another address of a control plane than the route."""
        confirmed = self._reached.get(route.key)
        return confirmed is not None and route.upstream is not None and confirmed != route.upstream.address

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
            if self._silence.is_hang():
                logger.warning("Envoy hangs and is restarted: no response for %.0f s", self._silence.seconds)
                await self._runtime.stop(ENVOY)
            await self._runtime.apply(component)

    async def _confirm(self) -> bool:
        deadline = time.monotonic() + _CONFIRMED_SECONDS
        while time.monotonic() < deadline:
            if await self.ready():
                return True
            await asyncio.sleep(_POLL_SECONDS)
        logger.warning("Envoy has not confirmed the present configuration within %.0f s", _CONFIRMED_SECONDS)
        return False
