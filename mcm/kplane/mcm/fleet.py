"""The instances of the whole fleet: one for each service of each engaged cluster, none for any other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Protocol

from typing_extensions import override

from kplane.mcm.describe.controllers import controllers_name
from kplane.mcm.describe.flags import NO_FLAGS, Flags
from kplane.mcm.describe.services import Served, served
from kplane.mcm.errors import McmError, NotAnnounced, RegistrationWithdrawn
from kplane.mcm.instance.api_server_probe import Tenant
from kplane.mcm.instance.exits import OomKills
from kplane.mcm.instance.lifecycle import Instance
from kplane.mcm.instance.programs import Programs
from kplane.mcm.instance.start_gate import Guard, GuardPace
from kplane.mcm.instance.turns import StartBudget
from kplane.mcm.reasons import Reason
from kplane.mcm.status.summary import summarize
from kplane.provider import Aware, Backoff, Cluster, Engagement
from kplane.provider.aio.cancellation import complete
from kplane.provider.aio.running import keep_running
from kplane.provider.logs import log_fields
from kplane.workloads import Runtime, WorkloadsError

__all__ = ["Instances", "Witness", "remove_leftovers"]

logger = logging.getLogger(__name__)


class Witness(Protocol):
    """Who is told what becomes of instances, by the name of their cluster."""

    async def announce(self, cluster: Cluster, *, version: str | None) -> None:
        """One is about to start, of that version where one was chosen.

        Raises RegistrationWithdrawn or NotAnnounced: it must not, or not now.
        """

    def say(self, name: str, reason: Reason, *, message: str = "") -> None:
        """It changed."""

    def say_failure(self, cluster: Cluster, message: str) -> None:
        """It cannot start, and will be tried again."""

    async def end(self, name: str) -> None:
        """It has ended, and nothing of it is left."""


class Instances(Aware):
    """Starts the instances of a cluster when it is engaged, and ends them, awaited, with the engagement.

    As the next engagement of a cluster begins only after the end of the one before, two instances of a service never
    work on the cluster of one registration. The witness hears of the instances of a cluster as of one: before the first
    one starts, what is wrong with any, and when all have ended.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        witness: Witness,
        flags: Flags = NO_FLAGS,
        scheduler_flags: Flags = NO_FLAGS,
        programs: Programs | None = None,
        guard_pace: GuardPace | None = None,
        budget: StartBudget | None = None,
        readers: bytes | None = None,
        admit: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`readers` is the authority of those that may read the metrics of instances, in PEM; None: nobody may.

        `admit` is awaited before an instance starts that is new in `all`; none starts where it raises. `flags` are of
        kube-controller-manager. Without
        `guard_pace` instances run whatever stands in the way of them in their cluster.
        """
        self._runtime = runtime
        self._witness = witness
        self._flags = flags
        self._scheduler_flags = scheduler_flags
        self._programs = programs or Programs(runtime=runtime)
        self._guard_pace = guard_pace
        self._budget = budget or StartBudget()
        self._readers = readers
        self._oom_kills = OomKills()
        self._admit = admit
        self._instances: dict[str, tuple[Instance, ...]] = {}

    @property
    def groups(self) -> Mapping[str, tuple[Instance, ...]]:
        """The instances by the name of their cluster, at least one each; controllers come first."""
        return MappingProxyType(self._instances)

    def all(self) -> list[Instance]:
        """Every instance of every cluster."""
        return [instance for instances in self._instances.values() for instance in instances]

    def profile(self, cluster: Cluster) -> str:
        """Tell which controllers run for a cluster, in one word, whether or not there is an instance."""
        return controllers_name(cluster, flags=self._flags)

    @override
    async def engage(self, engagement: Engagement) -> None:
        """See `Aware.engage`."""
        cluster = engagement.cluster
        with log_fields(cluster=cluster.name):
            instances = tuple(self._create(engagement, service) for service in served(cluster))
            self._instances[cluster.name] = instances
            engagement.on_close(lambda: self._end(cluster.name))
            try:
                for instance in instances:
                    await instance.check()
                if self._admit is not None:
                    await self._admit()
                await self._witness.announce(cluster, version=instances[0].version)
            except (RegistrationWithdrawn, NotAnnounced):
                raise
            except (McmError, WorkloadsError, OSError) as error:
                self._witness.say_failure(cluster, str(error))
                raise
            for instance in instances:
                guard = self._guard(instance)
                self._keep(engagement, f"guard {instance.service.program}", partial(guard.keep, engagement))
                self._keep(
                    engagement, f"follow changes: {instance.service.program}", partial(instance.follow, engagement)
                )

    @staticmethod
    def _keep(engagement: Engagement, what: str, run: Callable[[], Awaitable[None]]) -> None:
        _ = engagement.spawn(keep_running(f"{engagement.cluster.name}: {what}", run), name=what)

    def _create(self, engagement: Engagement, service: Served) -> Instance:
        cluster = engagement.cluster
        return Instance(
            cluster,
            runtime=self._runtime,
            changed=lambda: self._tell(cluster.name),
            service=service,
            generation=engagement.generation,
            flags=self._flags if service is Served.CONTROLLERS else self._scheduler_flags,
            programs=self._programs,
            budget=self._budget,
            readers=self._readers,
            oom_kills=self._oom_kills,
        )

    def _guard(self, instance: Instance) -> Guard:
        pace = self._guard_pace
        tenant = Tenant(instance.service.program, timeout_seconds=pace.timeout) if pace is not None else None
        return Guard(instance, tenant=tenant, pace=pace or GuardPace())

    def _tell(self, name: str) -> None:
        told = summarize(self._instances[name])
        if told is not None:
            self._witness.say(name, told.reason, message=told.message)

    async def _end(self, name: str) -> None:
        backoff = Backoff(initial_seconds=1.0, maximum_seconds=60.0)
        with log_fields(cluster=name):
            try:
                while failures := await _close(self._instances[name]):
                    # No other instance may begin for this registration, nor its control plane go, until that is done.
                    message, delay = " ".join(map(str, failures)), backoff.next_delay()
                    self._witness.say(name, Reason.CANNOT_END, message=message)
                    logger.error("instances of %s cannot be ended, again in %.1f s: %s", name, delay, message)
                    await asyncio.sleep(delay)
            finally:
                del self._instances[name]
            await self._witness.end(name)


async def _close(instances: Iterable[Instance]) -> list[BaseException]:
    """End them all, those that have ended once more; return what went wrong."""
    ends = await asyncio.gather(*(instance.aclose() for instance in instances), return_exceptions=True)
    return [end for end in ends if isinstance(end, BaseException)]


async def remove_leftovers(runtime: Runtime) -> None:
    """Remove what a run that did not end by itself has left: files with credentials, and the odd process."""
    names = runtime.names()
    if names:
        logger.info("removing what an earlier run has left of %d instances", len(names))
    await complete(runtime.delete(name) for name in names)
