"""Debouncing of edits: waits until a cluster stays the same, and drops edits that do not affect its instances."""

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
"""Number of waits after which the last description of a cluster that changes all the time is passed on."""
_KEPT: Final = "cluster %s: invalid key %s; keeping the last valid one until the Secret is corrected"


class DebouncingProvider:
    """Provider that debounces the clusters of another provider; `effective` describes each cluster.

    A changed description is passed on after it stayed the same for `seconds`, or after five times that. Of several
    edits in a row the last counts; edits that cancel each other out have no effect. Keys and credentials are debounced
    too, because a Secret may be edited in several steps.

    New and removed clusters are passed on at once. So is the switch of a name to another control plane, because the
    removal of the former control plane may depend on it. Invalid keys do not replace valid keys at the same address
    (`usable_keys`). All other changes are passed on.
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
        """Name of the debounced provider, for logs and metrics."""
        return self._provider.name

    async def run(self, fleet: Fleet) -> None:
        """See `Provider.run`."""
        async with asyncio.TaskGroup() as tasks:
            await self._provider.run(_DebouncedFleet(self, fleet, tasks=tasks))

    async def describe(self, cluster: Cluster) -> Effective:
        """Return the effective description of a cluster; see `effective`."""
        return await effective(cluster, programs=self._programs, flags=self._flags)

    @property
    def seconds(self) -> float:
        """Time in seconds for which a cluster has to stay the same."""
        return self._seconds


class _DebouncedFleet:
    """Fleet of the debounced provider: holds changed clusters back until they stay the same."""

    def __init__(self, settling: DebouncingProvider, fleet: Fleet, *, tasks: asyncio.TaskGroup) -> None:
        self._settling = settling
        self._fleet = fleet
        self._tasks = tasks
        self._pending: dict[str, Cluster] = {}
        self._waiting: set[str] = set()
        self._told: dict[str, tuple[str, ...]] = {}

    async def add_or_replace(self, cluster: Cluster) -> None:
        """See `Fleet.add_or_replace`. Only queues a changed description, which is passed on later."""
        described = await self._settling.describe(cluster)
        name, present = described.name, self._present(described.name)
        if present is None or _uid(described) != _uid(present):
            self._pending.pop(name, None)
            self._told.pop(name, None)
            await self._fleet.add_or_replace(described)
            return
        cluster = self._with_usable_keys(described, former=present)
        if not cluster.equals(self._pending.get(name, present)):  # a repeated description does not extend the wait
            self._pending[name] = cluster
            if name not in self._waiting:
                self._waiting.add(name)
                self._tasks.create_task(self._settle(name), name=f"settle {name}")

    async def remove(self, name: str) -> None:
        """See `Fleet.remove`."""
        self._pending.pop(name, None)
        self._told.pop(name, None)
        await self._fleet.remove(name)

    def get(self, name: str) -> Cluster:
        """See `Fleet.get`. While a cluster is being replaced, return its replacement."""
        try:
            return self._fleet.get(name)
        except ClusterNotReady:
            if (replacement := self._pending.get(name)) is not None:
                return replacement
            raise

    def names(self) -> list[str]:
        """See `Fleet.names`."""
        return self._fleet.names()

    def _present(self, name: str) -> Cluster | None:
        try:
            return self.get(name)
        except (ClusterNotFound, ClusterNotReady):
            return None

    def _with_usable_keys(self, cluster: Effective, *, former: Cluster) -> Cluster:
        """Keep the last valid keys, and log each kept key once. A new address keeps no former keys."""
        reported = self._told.pop(cluster.name, ())
        if cluster.config.server != former.config.server:
            return cluster
        credentials, kept = usable_keys(cluster, former=former)
        if not kept:
            return cluster
        self._told[cluster.name] = kept
        for sentence in kept:
            if sentence not in reported:
                logger.warning(_KEPT, cluster.name, sentence)
        return cluster.with_credentials(credentials)

    async def _settle(self, name: str) -> None:
        """Pass on the pending descriptions of a cluster, and retry failures. A failure affects no other cluster."""
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
        """Wait until the pending description is due, and return it; None if it was removed. It stays pending."""
        loop, wait = asyncio.get_running_loop(), self._settling.seconds
        latest = loop.time() + _PATIENCE * wait
        while (candidate := self._pending.get(name)) is not None:
            await asyncio.sleep(wait)
            if self._pending.get(name) is candidate or loop.time() >= latest:
                break
        return self._pending.get(name)


def _uid(cluster: Cluster) -> str | None:
    return cluster.attributes.get(UID_ATTRIBUTE)


async def effective(cluster: Cluster, *, programs: Programs, flags: Flags = NO_FLAGS) -> Effective:
    """Return the effective description: equal descriptions lead to the same instances.

    The description omits services that mcm does not provide, and has the default for a missing profile. Its version is
    the version of the API server. The comparison uses the version of the chosen programs instead. So an upgrade of the
    API server changes nothing if the same programs fit.
    """
    attributes = dict(cluster.attributes)
    if attributes.get(SERVICES_ATTRIBUTE):
        attributes[SERVICES_ATTRIBUTE] = ",".join(services_of(cluster))
    if not (attributes.get(PROFILE_ATTRIBUTE) or controllers_named(cluster) or flags.controllers):
        attributes[PROFILE_ATTRIBUTE] = ControllersProfile.NODELESS
    compared = dict(attributes)
    # `Instances` follows services within an engagement, so a further service restarts none of the other instances.
    compared[SERVICES_ATTRIBUTE] = ""
    if attributes.get(VERSION_ATTRIBUTE) and (version := await _version(cluster, programs=programs)):
        compared[VERSION_ATTRIBUTE] = version
    return Effective(cluster, attributes=attributes, compared=compared)


class Effective(Cluster):
    """Cluster that continues its former description while the attributes `compared` are equal."""

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
    """Return the common minor version of the programs of a cluster; None if they differ, or if no program fits."""
    try:
        builds = [await programs.choose(kind.program, cluster=cluster) for kind in instance_kinds(cluster)]
    except (McmError, WorkloadsError):
        return None  # the start of the instance reports the error
    versions = {(version.major, version.minor) for build in builds if (version := build.version) is not None}
    return "{}.{}".format(*versions.pop()) if len(versions) == 1 else None
