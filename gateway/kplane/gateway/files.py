"""Files of Envoy: validated before publication, and replaced by rename.

After a failed validation, the valid files stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from kplane.gateway.envoy.bodies import BodyLimit
from kplane.gateway.envoy.bootstrap import MEMORY_BYTES, Layout, bootstrap, candidate
from kplane.gateway.envoy.clusters import clusters
from kplane.gateway.envoy.host_names import domains_of
from kplane.gateway.envoy.listener import Serving, listener, serving_files
from kplane.gateway.envoy.messages import discovery_response, typed, version_of
from kplane.gateway.envoy.routing import routing
from kplane.gateway.errors import ConfigurationRejected
from kplane.gateway.routes import Route

__all__ = ["Published", "Publisher", "Validator", "Versions"]

logger = logging.getLogger(__name__)

_REFUSED: Final = "the gateway cannot serve this control plane"


class Validator(Protocol):
    """Validates a configuration with Envoy."""

    async def __call__(self, configuration: bytes) -> None:
        """Raise ConfigurationRejected with Envoy's reason if Envoy rejects the configuration."""
        ...


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of the published files, as Envoy reports them once it uses the files."""

    listeners: str
    clusters: str
    routes: str


@dataclass(frozen=True, slots=True)
class Published:
    """Result of a publication."""

    versions: Versions
    routes: Sequence[Route]
    """Published route for each requested route: the route itself, or the route that is served in its place."""
    refused: Mapping[str, str]
    """Reasons of Envoy for rejected routes, by key."""
    leaving: bool
    """Whether clusters of removed routes remain. Call `prune` once Envoy uses the new route configuration."""


class Publisher:
    """Maintains the files of an Envoy. Only one call may run at a time. A call that was interrupted can be repeated."""

    def __init__(self, directory: Path, *, validate: Validator, memory_bytes: int = MEMORY_BYTES) -> None:
        """Create a publisher.

        `directory` belongs to the gateway alone, since its files contain private keys. `memory_bytes` is Envoy's memory
        limit.
        """
        self._memory_bytes = memory_bytes
        self.layout = Layout(PurePosixPath(directory.absolute()))
        self._validate = validate
        self._published: dict[str, Route] = {}
        self._leaving: dict[str, Route] = {}
        """Removed routes whose clusters Envoy still has, by key."""
        self._serving: Serving | None = None

    async def prepare(self) -> None:
        """Create the directories, the bootstrap, and files without listeners and clusters unless former files exist."""
        await asyncio.to_thread(self._prepare)

    async def publish(
        self, routes: Iterable[Route], *, serving: Serving, bodies: Iterable[BodyLimit] = ()
    ) -> Published:
        """Write the files for these routes, which must have unique keys and paths.

        If Envoy rejects a route, its former version stays in force; without a former version, the route responds with
        503. All other routes are served. `bodies` are the body limits of control planes without a route here. Raises
        ConfigurationRejected if Envoy rejects the listener; then no file changes.
        """
        desired = {route.key: route for route in sorted(routes, key=lambda route: route.key)}
        refused = await self._refused(desired, serving=serving)
        for key in refused:
            absent = replace(desired[key], upstream=None, why_absent=_REFUSED)
            desired[key] = self._published.get(key, absent)
        served = list(desired.values())
        # Clusters of host names may go at once: the route configuration does not use them. Another control plane may
        # also get a cluster of the same name.
        former = {key: route for key, route in (self._leaving | self._published).items() if not route.host}
        self._leaving = {
            key: route for key, route in former.items() if key not in desired and route.upstream is not None
        }
        versions = await asyncio.to_thread(self._write, served, serving, frozenset(bodies))
        self._published, self._serving = desired, serving
        return Published(versions, served, refused, leaving=bool(self._leaving))

    async def prune(self, versions: Versions) -> Versions:
        """Remove the clusters that no route uses. Envoy must already use the route configuration of `versions`.

        A request by a former route configuration would get 503 for a removed cluster. Returns the new versions.
        """
        self._leaving = {}
        return replace(versions, clusters=await asyncio.to_thread(self._write_clusters, list(self._published.values())))

    async def _refused(self, wanted: Mapping[str, Route], *, serving: Serving) -> dict[str, str]:
        """Validate changed routes. Returns the reasons of rejected routes, by key.

        Envoy takes two seconds to validate 1,000 routes. Routes are independent, so unchanged routes need no
        validation. Raises ConfigurationRejected if Envoy rejects the listener.
        """
        changed = [route for key, route in wanted.items() if not _alike(self._published.get(key), route)]
        if not changed and serving == self._serving:
            return {}
        try:
            await self._validate(candidate(self.layout, serving=serving, routes=changed))
        except ConfigurationRejected as error:
            logger.warning("Envoy refuses a configuration: %s", error)
        else:
            return {}
        await self._validate(candidate(self.layout, serving=serving, routes=()))
        refused = {}
        for route in changed:
            try:
                await self._validate(candidate(self.layout, serving=serving, routes=[route]))
            except ConfigurationRejected as error:
                refused[route.key] = str(error)
        return refused

    def _prepare(self) -> None:
        layout = self.layout
        root = Path(layout.directory)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.chmod(0o700)
        files = (layout.listeners, layout.routes, layout.clusters, layout.administration)
        for directory in (*(file.parent for file in files), layout.serving):
            Path(directory).mkdir(mode=0o700, exist_ok=True)
        for file in (layout.listeners, layout.clusters):
            # Envoy does not start if a file that the bootstrap names is missing.
            if not Path(file).exists():
                _replace(file, discovery_response(()))
        _replace(layout.bootstrap, bootstrap(layout, memory_bytes=self._memory_bytes))

    def _write(self, routes: list[Route], serving: Serving, bodies: frozenset[BodyLimit]) -> Versions:
        layout = self.layout
        for name, content in serving_files(serving).items():
            _replace(layout.serving / name, content)
        listening = listener(
            serving,
            routes=str(layout.routes),
            secrets=layout.serving,
            changes=layout.changes,
            domains=domains_of(routes),
        )
        table = typed("envoy.config.route.v3.RouteConfiguration", **routing(routes, bodies=bodies))
        files = {
            layout.routes: discovery_response([table]),
            layout.listeners: discovery_response([typed("envoy.config.listener.v3.Listener", **listening)]),
        }
        # Write clusters before the routes that use them. `prune` removes clusters after their routes.
        clusters_version = self._write_clusters([*routes, *self._leaving.values()])
        for path, content in files.items():
            _replace(path, content)
        return Versions(
            listeners=version_of(files[layout.listeners]),
            clusters=clusters_version,
            routes=version_of(files[layout.routes]),
        )

    def _write_clusters(self, routes: list[Route]) -> str:
        """Write the clusters of these routes. Returns the version of the file."""
        messages = clusters(routes, holder=self.layout.holder, waiting_room=self.layout.waiting_room)
        content = discovery_response(typed("envoy.config.cluster.v3.Cluster", **cluster) for cluster in messages)
        _replace(self.layout.clusters, content)
        return version_of(content)


def _alike(one: Route | None, other: Route) -> bool:
    """Return whether Envoy validates both routes in the same way.

    Sleep and write holds change only the target of requests.
    """
    return one is not None and _lasting(one) == _lasting(other)


def _lasting(route: Route) -> Route:
    return replace(route, asleep=None, held=None)


def _replace(path: PurePosixPath, content: bytes) -> None:
    """Replace a file atomically, unless its content is equal."""
    file = Path(path)
    with contextlib.suppress(OSError):
        if file.read_bytes() == content:
            return
    new = file.with_name(f".{file.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(content)
    new.replace(file)
