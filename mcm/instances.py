"""The instances of the whole fleet: one for each engaged cluster, none for any other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from typing_extensions import override

from mcm.configuration import controllers_name
from mcm.errors import McmError, RegistrationWithdrawn
from mcm.flags import NO_FLAGS, Flags
from mcm.instance import Instance
from mcm.programs import Programs
from mcm.report import Reason
from provider import Aware, Cluster, Engagement
from provider.logs import log_fields
from workloads import Runtime, WorkloadsError

__all__ = ["Instances", "Witness", "remove_leftovers"]

logger = logging.getLogger(__name__)


class Witness(Protocol):
    """Who is told what becomes of instances, by the name of their cluster."""

    async def announce(self, cluster: Cluster, *, version: str | None) -> None:
        """One is about to start, of that version where one was chosen. Raises RegistrationWithdrawn: it must not."""

    def say(self, name: str, reason: Reason, *, message: str = "") -> None:
        """It changed."""

    def say_failure(self, cluster: Cluster, message: str) -> None:
        """It cannot start, and will be tried again."""

    async def end(self, name: str) -> None:
        """It has ended, and nothing of it is left."""


class Instances(Aware):
    """Starts an instance when a cluster is engaged, and ends it, awaited, with the engagement.

    As the next engagement of a cluster begins only after the end of the one before, two instances never work on the
    cluster of one registration. The witness hears of an instance before it starts, and when it has ended.
    """

    def __init__(
        self, runtime: Runtime, *, witness: Witness, flags: Flags = NO_FLAGS, programs: Programs | None = None
    ) -> None:
        self._runtime = runtime
        self._witness = witness
        self._flags = flags
        self._programs = programs or Programs(runtime=runtime)
        self._instances: dict[str, Instance] = {}

    @property
    def by_cluster(self) -> Mapping[str, Instance]:
        """Each instance by the name of its cluster."""
        return MappingProxyType(self._instances)

    def profile(self, cluster: Cluster) -> str:
        """Tell which controllers run for a cluster, in one word, whether or not there is an instance."""
        return controllers_name(cluster, flags=self._flags)

    @override
    async def engage(self, engagement: Engagement) -> None:
        """See `Aware.engage`."""
        cluster = engagement.cluster
        with log_fields(cluster=cluster.name):
            instance = Instance(
                cluster,
                runtime=self._runtime,
                changed=lambda: self._tell(cluster.name),
                flags=self._flags,
                programs=self._programs,
            )
            self._instances[cluster.name] = instance
            engagement.on_close(lambda: self._end(instance))
            try:
                await instance.check()
                await self._witness.announce(cluster, version=instance.version)
                await instance.start()
            except RegistrationWithdrawn:
                raise
            except (McmError, WorkloadsError) as error:
                self._witness.say_failure(cluster, str(error))
                raise
            _ = engagement.spawn(instance.follow(engagement), name="follow changes")

    def _tell(self, name: str) -> None:
        instance = self._instances[name]
        if (reason := instance.reason) is not None:
            self._witness.say(name, reason, message=instance.message)

    async def _end(self, instance: Instance) -> None:
        name = instance.cluster.name
        with log_fields(cluster=name):
            try:
                await instance.aclose()
            except WorkloadsError as error:
                self._witness.say(name, Reason.CANNOT_END, message=str(error))
                raise
            finally:
                del self._instances[name]
            await self._witness.end(name)


async def remove_leftovers(runtime: Runtime) -> None:
    """Remove what a run that did not end by itself has left: files with credentials, and the odd process."""
    names = runtime.names()
    if names:
        logger.info("removing what an earlier run has left of %d instances", len(names))
    await asyncio.gather(*(runtime.delete(name) for name in names))
