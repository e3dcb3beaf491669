"""Controller of the gateway: makes the data plane serve the control planes of the management cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from kplane.gateway.control_planes import CONTROL_PLANES, SECRETS_SELECTOR, Progress, RouteTable
from kplane.gateway.data_plane import DataPlane
from kplane.gateway.envoy.bodies import BodyLimit, limits_of_bodies
from kplane.gateway.envoy.listener import Serving
from kplane.gateway.errors import CertificateInvalid, ConfigurationRejected
from kplane.gateway.routes import Route
from kplane.gateway.serving_certificate import read_certificate
from kplane.gateway.usage import UsageReporter
from kplane.provider import Client, Event, Informer
from kplane.provider.aio.backoff import Backoff
from kplane.provider.client.resources import SECRETS
from kplane.workloads import WorkloadsError

__all__ = ["Controller"]

logger = logging.getLogger(__name__)

_GATHERED_SECONDS: Final = 0.1
"""Seconds over which changes are collected before Envoy gets them as a single configuration."""
_TOLD_SECONDS: Final = 0.02
"""Seconds over which changes are collected before waiting requests get them."""
_LOOK_SECONDS: Final = 10.0
"""Seconds between two passes without a change of an object. A pass reads the serving certificate and checks Envoy."""


class Controller:
    """Watches control planes and their Secrets, and applies their routes to the data plane."""

    def __init__(
        self,
        client: Client,
        plane: DataPlane,
        *,
        namespace: str,
        host: str,
        port: int,
        certificates: Path,
        usage_seconds: float,
    ) -> None:
        """Create a controller that serves on `host` and `port`.

        `namespace` holds the Secrets of control planes. `certificates` is the directory of the serving certificate.
        `usage_seconds` is the interval between two reports of use of a control plane.
        """
        self._plane = plane
        self._host = host
        self._port = port
        self._certificates = certificates
        self._control_planes = Informer(client, CONTROL_PLANES)
        self._secrets = Informer(client, SECRETS, namespace=namespace, label_selector=SECRETS_SELECTOR)
        self._usage = UsageReporter(client, self._control_planes, numbers=plane.numbers, interval_seconds=usage_seconds)
        self._table = RouteTable(self._control_planes, self._secrets, namespace=namespace)
        self._changed = asyncio.Event()
        self._seen = asyncio.Event()
        self._serving: Serving | None = None
        self._applied: tuple[list[Route], frozenset[BodyLimit], Serving] | None = None
        self._confirmed = 0.0
        """Monotonic time of the last check that Envoy serves the routes."""
        self._changes = 0
        """Number of changes to routes that Envoy itself serves."""
        self._served: tuple[int, Progress] | None = None
        """Value of `_changes`, and progress of the routes, as of Envoy's last confirmation."""
        self.on_served: Callable[[], None] = lambda: None
        """Callback after a change of `served`."""
        self.routes: list[Route] = []
        """Routes that the gateway serves."""
        self.problem: str | None = "control planes have not been read yet"
        """Reason for people why some routes are not served; None if all routes are served."""

    async def run(self) -> None:
        """Run the controller until cancelled.

        Raises CertificateInvalid if there is no valid serving certificate at the start.
        """
        self._serving = await self._read(None)
        async with self._following(), asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tell(), name="tell which control planes sleep")
            tasks.create_task(self._apply(), name="apply routes")
            tasks.create_task(self._usage.run(), name="report which control planes are in use")

    @property
    def served(self) -> Progress | None:
        """Progress up to which all requests follow the management cluster; None before Envoy confirms the first routes.

        Envoy asks the authorizer about each path that it does not know, so requests to new paths follow at once. The
        progress therefore waits for Envoy's confirmation only if a route of Envoy itself has changed.
        """
        if self._served is None:
            return None
        changes, progress = self._served
        return self._table.progress if changes == self._changes else progress

    @property
    def is_current(self) -> bool:
        """Whether both informers watch the management cluster.

        Only then does an unknown path belong to no control plane.
        """
        return all(informer.state == "ready" for informer in (self._control_planes, self._secrets))

    def has(self, progress: Progress) -> bool:
        """Return whether the authorizer has the routes up to this progress."""
        versions = self._control_planes.version, self._secrets.version
        # After a restore of the management cluster, versions are lower than the progress of before.
        reached = map(max, versions, self._table.progress)
        if any(version < wanted for version, wanted in zip(reached, progress, strict=True)):
            return False
        # The last changes may not have reached the authorizer yet.
        self._renew()
        return True

    def _renew(self) -> None:
        secrets, changed = self._table.progress.secrets, self._table.renew()
        self._plane.update(changed)
        self._changes += self._plane.concerns_envoy(changed)
        # Some changes of control planes change no route, such as the time of the last use. Such a change must not cause
        # a write of the Lease.
        if changed or secrets != self._table.progress.secrets:
            self.on_served()

    async def _tell(self) -> None:
        """Pass changes to the data plane before they are collected for Envoy.

        Requests wait for control planes that wake up, so each delay counts.
        """
        while True:
            self._renew()
            await self._seen.wait()
            await asyncio.sleep(_TOLD_SECONDS)
            self._seen.clear()

    async def _apply(self) -> None:
        backoff = Backoff(initial_seconds=1.0, maximum_seconds=30.0)
        while True:
            self._changed.clear()
            if await self._pass():
                backoff.reset()
                delay = _LOOK_SECONDS
            else:
                delay = backoff.next_delay()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._changed.wait()
                await asyncio.sleep(_GATHERED_SECONDS)

    @contextlib.asynccontextmanager
    async def _following(self) -> AsyncIterator[None]:
        """Run the informers while the context is open, after an initial read of all objects.

        Otherwise control planes that have not been read yet would seem deleted.
        """
        try:
            for informer in (self._control_planes, self._secrets):
                informer.start()
            for informer, note in (
                (self._control_planes, self._table.control_plane),
                (self._secrets, self._table.secret),
            ):
                await informer.wait_synced()
                await informer.add_handler(partial(self._see, note)).synced.wait()
            self._plane.on_wake(self._changed.set)
            yield
        finally:
            await self._control_planes.aclose()
            await self._secrets.aclose()

    def _see(self, note: Callable[[str, int], None], event: Event) -> None:
        note(event.name, int(event.resource_version))
        self._seen.set()
        self._changed.set()

    def _routes(self) -> list[Route]:
        self._renew()
        return self._table.routes

    async def _pass(self) -> bool:
        """Apply the current routes and the serving certificate. Returns False if a retry is needed."""
        try:
            self._serving = serving = await self._read(self._serving)
            routes = self._routes()
            served = self._changes, self._table.progress
            # Of sleeping control planes with a path, Envoy's configuration depends only on the body limits. So such
            # control planes come and go without a new configuration.
            desired = self._plane.wanted(routes), limits_of_bodies(routes), serving
            if desired == self._applied and await self._is_served():
                # The last `apply` ended with the routes that it began with. Replace them with the current routes.
                self._plane.know(routes)
                self.routes = routes
                self._note_served(served)
                return True
            refused = await self._plane.apply(routes, serving=serving)
        except (ConfigurationRejected, OSError, WorkloadsError) as error:
            self.problem = str(error)
            logger.warning("the configuration of before stays: %s", error)
            return False
        names = {route.key: route.cluster_path for route in routes}
        for key, reason in refused.items():
            logger.warning("Envoy refuses the route of %s: %s", names[key], reason)
        self.routes = [route for route in routes if route.key not in refused]
        confirmed = await self._plane.ready()
        self._applied = desired if confirmed and not refused else None
        self._confirmed = time.monotonic()
        self.problem = None
        logger.info("serves %d control planes", sum(route.upstream is not None for route in self.routes))
        if not confirmed:
            self.problem = "Envoy does not use the present configuration"
            return False
        # A route that Envoy rejects must not hold back the confirmation of the other routes.
        self._note_served(served)
        if refused:
            self.problem = f"Envoy refuses the routes of {', '.join(sorted(names[key] for key in refused))}"
        return self._applied is not None

    def _note_served(self, served: tuple[int, Progress]) -> None:
        if served != self._served:
            self._served = served
            self.on_served()

    async def _is_served(self) -> bool:
        """Return whether Envoy serves the applied configuration. A positive result is cached for `_LOOK_SECONDS`."""
        if time.monotonic() < self._confirmed + _LOOK_SECONDS:
            return True
        served = await self._plane.ready()
        if served:
            self._confirmed = time.monotonic()
        return served

    async def _read(self, known: Serving | None) -> Serving:
        try:
            certificate = await read_certificate(self._certificates)
        except CertificateInvalid as error:
            if known is None:
                raise
            logger.warning("%s; the one of before stays", error)
            return known
        if known is None:
            return Serving(host=self._host, port=self._port, certificate=certificate)
        return replace(known, certificate=certificate)
