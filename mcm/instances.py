"""The instances of the whole fleet: one for each engaged cluster, none for any other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from types import MappingProxyType

from typing_extensions import override

from mcm.instance import Instance
from provider import Aware, Engagement
from provider.logs import log_fields
from workloads import Runtime

__all__ = ["Instances", "remove_leftovers"]

logger = logging.getLogger(__name__)


class Instances(Aware):
    """Starts an instance when a cluster is engaged, and ends it, awaited, with the engagement.

    As the next engagement of a cluster begins only after the end of the one before, two instances never work on the
    cluster of one registration.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._instances: dict[str, Instance] = {}

    @property
    def by_cluster(self) -> Mapping[str, Instance]:
        """Each instance by the name of its cluster."""
        return MappingProxyType(self._instances)

    @override
    async def engage(self, engagement: Engagement) -> None:
        """See `Aware.engage`."""
        cluster = engagement.cluster
        with log_fields(cluster=cluster.name):
            instance = Instance(cluster, runtime=self._runtime)
            self._instances[cluster.name] = instance

            async def end() -> None:
                with log_fields(cluster=cluster.name):
                    try:
                        await instance.aclose()
                    finally:
                        del self._instances[cluster.name]

            engagement.on_close(end)
            await instance.start()
            _ = engagement.spawn(instance.follow(engagement), name="follow changes")


async def remove_leftovers(runtime: Runtime) -> None:
    """Remove what a run that did not end by itself has left: files with credentials, and the odd process."""
    names = runtime.names()
    if names:
        logger.info("removing what an earlier run has left of %d instances", len(names))
    await asyncio.gather(*(runtime.delete(name) for name in names))
