"""Waits until edits of a cluster settle, and drops edits that make no difference to its instances."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from typing_extensions import override

from kplane.api import ControllersProfile
from kplane.mcm.describe.controllers import controllers_named
from kplane.mcm.describe.flags import NO_FLAGS, Flags
from kplane.mcm.describe.keys import usable_keys
from kplane.mcm.describe.kinds import instance_kinds, services_of
from kplane.mcm.describe.programs import Programs
from kplane.mcm.errors import McmError
from kplane.provider import Cluster, ClusterNotFound, ClusterNotReady, Fleet, Provider
from kplane.provider.aio.backoff import Backoff
from kplane.provider.aio.cancellation import asked_to_end
from kplane.provider.providers.kplane import (
    PROFILE_ATTRIBUTE,
    SERVICES_ATTRIBUTE,
    UID_ATTRIBUTE,
    VERSION_ATTRIBUTE,
)
from kplane.workloads import WorkloadsError

__all__ = ["DebouncingProvider", "Effective", "effective"]

logger = logging.getLogger(__name__)

_PATIENCE: Final = 5
"""So many times the wait, a cluster that never stays the same is followed."""
_KEPT: Final = "cluster %s: invalid key %s; keeping the last valid one until the Secret is corrected"


class DebouncingProvider:
    """A provider that passes on what another one tells, each cluster as `effective` describes it.

    Another description of a cluster is passed on when it has stayed the same for `seconds`, or after five times that:
    of several edits in a row the last one counts, and where that leads back there is nothing to do. So it is with keys
    and credentials too, as a Secret may be edited in several steps. Clusters that come or go, and the switch to another
    control plane, whose removal somebody may be waiting for, are passed on at once. Keys that no instance could start
    with replace none that one could at the same address (`usable_keys`); all else that changes is passed on.
    """

    def __init__(
        self, provider: Provider, *, programs: Programs, flags: Flags = NO_FLAGS, seconds: float = 2.0
    ) -> None:
        self._provider = provider
        self._programs = programs
        self._flags = flags
        self._seconds = seconds

    @property
    def name(self) -> str:
        """That of the provider that knows the clusters, for logs and metrics."""
        return self._provider.name

    async def run(self, fleet: Fleet) -> None:
        """See `Provider.run`."""
        async with asyncio.TaskGroup() as tasks:
            await self._provider.run(_DebouncedFleet(self, fleet, tasks=tasks))

    async def describe(self, cluster: Cluster) -> Effective:
        """Describe a cluster by what makes a difference."""
        return await effective(cluster, programs=self._programs, flags=self._flags)

    @property
    def seconds(self) -> float:
        """How long a cluster has to stay the same."""
        return self._seconds


class _DebouncedFleet:
    """The fleet as the provider below sees it."""

    def __init__(self, settling: DebouncingProvider, fleet: Fleet, *, tasks: asyncio.TaskGroup) -> None:
        self._settling = settling
        self._fleet = fleet
        self._tasks = tasks
        self._pending: dict[str, Cluster] = {}
        self._waiting: set[str] = set()
        self._told: dict[str, tuple[str, ...]] = {}

    async def add_or_replace(self, cluster: Cluster) -> None:
        """As Fleet's; returns before it is so where that has to settle."""
        described = await self._settling.describe(cluster)
        name, present = described.name, self._present(described.name)
        if present is None or _uid(described) != _uid(present):
            self._pending.pop(name, None)
            self._told.pop(name, None)
            await self._fleet.add_or_replace(described)
            return
        cluster = self._with_usable_keys(described, former=present)
        if not cluster.equals(self._pending.get(name, present)):  # else it is told again, which puts nothing off
            self._pending[name] = cluster
            if name not in self._waiting:
                self._waiting.add(name)
                self._tasks.create_task(self._settle(name), name=f"settle {name}")

    async def remove(self, name: str) -> None:
        """As Fleet's."""
        self._pending.pop(name, None)
        self._told.pop(name, None)
        await self._fleet.remove(name)

    def get(self, name: str) -> Cluster:
        """As Fleet's; of one that is being replaced, what replaces it."""
        try:
            return self._fleet.get(name)
        except ClusterNotReady:
            if (coming := self._pending.get(name)) is not None:
                return coming
            raise

    def names(self) -> list[str]:
        """As Fleet's."""
        return self._fleet.names()

    def _present(self, name: str) -> Cluster | None:
        try:
            return self.get(name)
        except (ClusterNotFound, ClusterNotReady):
            return None

    def _with_usable_keys(self, cluster: Effective, *, former: Cluster) -> Cluster:
        """Keep the last valid keys, and log that once; another address has keys of its own."""
        told = self._told.pop(cluster.name, ())
        if cluster.config.server != former.config.server:
            return cluster
        credentials, kept = usable_keys(cluster, former=former)
        if not kept:
            return cluster
        self._told[cluster.name] = kept
        for sentence in kept:
            if sentence not in told:
                logger.warning(_KEPT, cluster.name, sentence)
        return cluster.with_credentials(credentials)

    async def _settle(self, name: str) -> None:
        """Pass on what is pending of a cluster until nothing is; a failure affects no other cluster."""
        backoff = Backoff(initial_seconds=1.0, maximum_seconds=60.0)
        try:
            while (cluster := await self._settled(name)) is not None:
                try:
                    await self._fleet.add_or_replace(cluster)
                except (Exception, asyncio.CancelledError):
                    if asked_to_end():
                        raise
                    delay = backoff.next_delay()
                    logger.exception("failed to change cluster %s, retry in %.1f s", name, delay)
                    await asyncio.sleep(delay)
                else:
                    if self._pending.get(name) is cluster:
                        del self._pending[name]
        finally:
            self._waiting.discard(name)

    async def _settled(self, name: str) -> Cluster | None:
        """Return what is pending when it has stayed the same, or changed for long; it is pending until it is done."""
        loop, wait = asyncio.get_running_loop(), self._settling.seconds
        latest = loop.time() + _PATIENCE * wait
        while (seen := self._pending.get(name)) is not None:
            await asyncio.sleep(wait)
            if self._pending.get(name) is seen or loop.time() >= latest:
                break
        return self._pending.get(name)


def _uid(cluster: Cluster) -> str | None:
    return cluster.attributes.get(UID_ATTRIBUTE)


async def effective(cluster: Cluster, *, programs: Programs, flags: Flags = NO_FLAGS) -> Effective:
    """Describe a cluster so that descriptions which come to the same instances are the same.

    Services that mcm does not provide are left out, and a missing profile is filled in. The version stays as the API
    server reports it, but the version of the chosen programs is what counts: an API server that is newer than all of
    them changes nothing.
    """
    attributes = dict(cluster.attributes)
    if attributes.get(SERVICES_ATTRIBUTE):
        attributes[SERVICES_ATTRIBUTE] = ",".join(services_of(cluster))
    if not (attributes.get(PROFILE_ATTRIBUTE) or controllers_named(cluster) or flags.controllers):
        attributes[PROFILE_ATTRIBUTE] = ControllersProfile.NODELESS
    compared = dict(attributes)
    # `Instances` follows services within an engagement, so that one more restarts none of the others.
    compared[SERVICES_ATTRIBUTE] = ""
    if attributes.get(VERSION_ATTRIBUTE) and (version := await _version(cluster, programs=programs)):
        compared[VERSION_ATTRIBUTE] = version
    return Effective(cluster, attributes=attributes, compared=compared)


class Effective(Cluster):
    """A cluster that continues the former one while the attributes `compared` are the same."""

    def __init__(self, cluster: Cluster, *, attributes: Mapping[str, str], compared: Mapping[str, str]) -> None:
        super().__init__(cluster.name, config=cluster.config, credentials=cluster.credentials, attributes=attributes)
        self.compared: Final = compared

    def with_credentials(self, credentials: Mapping[str, bytes]) -> Effective:
        """Return the same cluster with other credentials."""
        cluster = Cluster(self.name, config=self.config, credentials=credentials)
        return Effective(cluster, attributes=self.attributes, compared=self.compared)

    @override
    def continues(self, previous: Cluster) -> bool:
        compared = previous.compared if isinstance(previous, Effective) else previous.attributes
        return self.compared == compared and self.config.continues(previous.config)


async def _version(cluster: Cluster, *, programs: Programs) -> str | None:
    """Return the minor version of the programs that run for a cluster; None if they differ, or one does not fit."""
    try:
        builds = [await programs.choose(each.program, cluster=cluster) for each in instance_kinds(cluster)]
    except (McmError, WorkloadsError):
        return None  # told where it is to run
    found = {(version.major, version.minor) for build in builds if (version := build.version) is not None}
    return "{}.{}".format(*found.pop()) if len(found) == 1 else None
