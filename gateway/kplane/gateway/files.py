"""Writes Envoy's files: validated before they are published, each exchanged by rename, the last good ones stay."""

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
    """Asks Envoy whether it would take a configuration."""

    async def __call__(self, configuration: bytes) -> None:
        """Raise ConfigurationRejected if it would not, with Envoy's words."""
        ...


@dataclass(frozen=True, slots=True)
class Versions:
    """What Envoy says when it uses the files that were published."""

    listeners: str
    clusters: str
    routes: str


@dataclass(frozen=True, slots=True)
class Published:
    """What was published of what was wanted."""

    versions: Versions
    routes: Sequence[Route]
    """One for each that was wanted: itself, or what is served in its place."""
    refused: Mapping[str, str]
    """By key, why Envoy refuses a route."""
    leaving: bool
    """Clusters are left that the table no longer refers to: call `prune` when Envoy uses the table."""


class Publisher:
    """Keeps the files of one Envoy. One call at a time; each may be cut off anywhere and repeated."""

    def __init__(self, directory: Path, *, validate: Validator, memory_bytes: int = MEMORY_BYTES) -> None:
        """`directory` is the gateway's alone: there are keys in it. `memory_bytes` is for Envoy."""
        self._memory_bytes = memory_bytes
        self.layout = Layout(PurePosixPath(directory.absolute()))
        self._validate = validate
        self._published: dict[str, Route] = {}
        self._leaving: dict[str, Route] = {}
        """By key, routes that Envoy no longer has, and whose clusters it still has."""
        self._serving: Serving | None = None

    async def prepare(self) -> None:
        """Make the directories, and what Envoy is started with: it serves nothing until the first `publish`."""
        await asyncio.to_thread(self._prepare)

    async def publish(
        self, routes: Iterable[Route], *, serving: Serving, bodies: Iterable[BodyLimit] = ()
    ) -> Published:
        """Have Envoy serve these routes, which all have a key and a path of their own.

        A route that Envoy refuses stays as it was; if it was none, it answers 503. The others are served. Raises
        ConfigurationRejected if the listener is refused; then nothing is changed. `bodies` are limits that other
        control planes have.
        """
        wanted = {route.key: route for route in sorted(routes, key=lambda route: route.key)}
        refused = await self._refused(wanted, serving=serving)
        for key in refused:
            absent = replace(wanted[key], upstream=None, why_absent=_REFUSED)
            wanted[key] = self._published.get(key, absent)
        served = list(wanted.values())
        # The cluster of a host name is not in the table, and has the name of its successor.
        known = {key: route for key, route in (self._leaving | self._published).items() if not route.host}
        self._leaving = {key: route for key, route in known.items() if key not in wanted and route.upstream is not None}
        versions = await asyncio.to_thread(self._write, served, serving, frozenset(bodies))
        self._published, self._serving = wanted, serving
        return Published(versions, served, refused, leaving=bool(self._leaving))

    async def prune(self, versions: Versions) -> Versions:
        """Remove the clusters that no route refers to. Envoy must use the table of these `versions` already.

        Requests by a former table would get 503 for a cluster that is gone.
        """
        self._leaving = {}
        return replace(versions, clusters=await asyncio.to_thread(self._write_clusters, list(self._published.values())))

    async def _refused(self, wanted: Mapping[str, Route], *, serving: Serving) -> dict[str, str]:
        """Validate what is new: Envoy takes two seconds for 1,000 routes, and each is independent of the others."""
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
            # Without a file that the bootstrap names, Envoy does not start.
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
        # Clusters come before the routes that refer to them, and go after these routes (`prune`).
        written = self._write_clusters([*routes, *self._leaving.values()])
        for path, content in files.items():
            _replace(path, content)
        return Versions(
            listeners=version_of(files[layout.listeners]),
            clusters=written,
            routes=version_of(files[layout.routes]),
        )

    def _write_clusters(self, routes: list[Route]) -> str:
        """Write the clusters of these routes; returns the version of the file."""
        found = clusters(routes, holder=self.layout.holder, waiting_room=self.layout.waiting_room)
        content = discovery_response(typed("envoy.config.cluster.v3.Cluster", **cluster) for cluster in found)
        _replace(self.layout.clusters, content)
        return version_of(content)


def _alike(one: Route | None, other: Route) -> bool:
    """Whether Envoy says the same of both. Whether a control plane sleeps or is held decides only where requests go."""
    return one is not None and _lasting(one) == _lasting(other)


def _lasting(route: Route) -> Route:
    return replace(route, asleep=None, held=None)


def _replace(path: PurePosixPath, content: bytes) -> None:
    """Exchange a file in one step, if it says something else."""
    file = Path(path)
    with contextlib.suppress(OSError):
        if file.read_bytes() == content:
            return
    new = file.with_name(f".{file.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(content)
    new.replace(file)
