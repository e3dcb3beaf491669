"""Instances of the fleet: one for each service of each engaged cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from typing_extensions import override

from kplane.mcm.describe.controllers import PROGRAM, controllers_name
from kplane.mcm.describe.flags import NO_FLAGS, Flags
from kplane.mcm.describe.kinds import InstanceKind, instance_kinds
from kplane.mcm.describe.programs import Programs
from kplane.mcm.errors import McmError, NotAnnounced, RegistrationWithdrawn
from kplane.mcm.instance.exits import OomKills
from kplane.mcm.instance.leftovers import Leftovers
from kplane.mcm.instance.lifecycle import Instance
from kplane.mcm.instance.start_gate import GatePace, StartGate
from kplane.mcm.instance.start_permit import StartPermit
from kplane.mcm.instance.tenant_lease import Holder, TenantLease
from kplane.mcm.instance.turns import StartBudget, Turn
from kplane.mcm.reasons import Reason
from kplane.mcm.status.observer import InstanceObserver
from kplane.mcm.status.report import summarize
from kplane.provider import Aware, Cluster, Engagement
from kplane.provider.aio.backoff import Backoff
from kplane.provider.aio.running import keep_running
from kplane.provider.logs import log_fields
from kplane.workloads import ProcessRuntime, WorkloadsError

__all__ = ["Instances"]

logger = logging.getLogger(__name__)


class Instances(Aware):
    """Starts the instances of a cluster when it is engaged, and stops them when the engagement closes.

    The next engagement of a cluster begins only after the former instances have ended. So a cluster never has two
    instances of a kind. A change of the services starts and stops instances within an engagement. The observer gets a
    report for all instances of a cluster before the first start, after each change, and when all have ended.
    """

    def __init__(
        self,
        runtime: ProcessRuntime,
        *,
        observer: InstanceObserver,
        flags: Flags = NO_FLAGS,
        scheduler_flags: Flags = NO_FLAGS,
        programs: Programs | None = None,
        gate_pace: GatePace | None = None,
        budget: StartBudget | None = None,
        readers: bytes | None = None,
        watchdog: Callable[[], Awaitable[None]] | None = None,
        leftovers: Leftovers | None = None,
        holder: Holder | None = None,
    ) -> None:
        """`readers` is the CA, in PEM, of the clients that may read metrics of instances; None: instances serve none.

        `watchdog` is awaited before an instance starts; if it raises WorkloadsError, the instance does not start.
        `flags` are flags of kube-controller-manager. Each instance runs while `holder` holds the Lease of its program
        in its control plane. Without `gate_pace`, instances run without Leases. `leftovers` removes the files of
        instances that have ended.
        """
        self._runtime = runtime
        self._observer = observer
        self._flags = flags
        self._scheduler_flags = scheduler_flags
        self._programs = programs or Programs(runtime=runtime)
        self._gate_pace = gate_pace
        self._holder = holder or Holder(name=PROGRAM, fleet=None, uid=lambda _: None)
        self._budget = budget or StartBudget()
        self._readers = readers
        self._oom_kills = OomKills()
        self._watchdog = watchdog
        self._instances: dict[str, tuple[Instance, ...]] = {}
        self._works: dict[str, Engagement] = {}
        """Engagements by component; each runs the start gate and the updates of an instance until its end."""
        self._announced: dict[str, tuple[InstanceKind, ...]] = {}
        """Kinds of the last announcement, by cluster; absent while the services of the cluster change."""
        self._leftovers = leftovers or Leftovers(runtime)
        runtime.before_restart(self._wait_to_restart)

    @property
    def groups(self) -> Mapping[str, tuple[Instance, ...]]:
        """Instances by the name of their cluster, at least one for each cluster; controllers come first."""
        return MappingProxyType(self._instances)

    def all(self) -> list[Instance]:
        """Return every instance of every cluster."""
        return [instance for instances in self._instances.values() for instance in instances]

    def components(self) -> set[str]:
        """Return the names of all instances in the runtime."""
        return {instance.component for instance in self.all()}

    def profile(self, cluster: Cluster) -> str:
        """Return the name of the controllers' profile of a cluster, whether or not an instance exists."""
        return controllers_name(cluster, flags=self._flags)

    @override
    async def engage(self, engagement: Engagement) -> None:
        """See `Aware.engage`."""
        cluster = engagement.cluster
        with log_fields(cluster=cluster.name):
            instances = tuple(self._create(engagement, kind) for kind in instance_kinds(cluster))
            self._instances[cluster.name] = instances
            engagement.on_close(lambda: self._end(cluster.name))
            await self._bring_up(engagement)
            self._keep(engagement, "follow services", partial(self._follow_services, engagement))

    async def _bring_up(self, engagement: Engagement) -> None:
        """Announce the instances of a cluster, and run the gates of new instances.

        Raises RegistrationWithdrawn or NotAnnounced if the instances must not start. Raises McmError, WorkloadsError or
        OSError if they cannot start.
        """
        cluster = engagement.cluster
        instances = self._instances[cluster.name]
        pending = [instance for instance in instances if instance.component not in self._works]
        try:
            for instance in pending:
                await instance.check()
            await self._observer.announce(cluster, version=instances[0].version)
        except (RegistrationWithdrawn, NotAnnounced):
            raise
        except (McmError, WorkloadsError, OSError) as error:
            self._observer.report_failure(cluster, str(error))
            raise
        self._announced[cluster.name] = tuple(instance.kind for instance in instances)
        for instance in pending:
            work = self._works[instance.component] = engagement.inner()
            gate = StartGate(instance, pace=self._gate_pace or GatePace())
            self._keep(work, f"start gate: {instance.kind.program}", partial(gate.keep, work))
            self._keep(work, f"follow changes: {instance.kind.program}", partial(instance.follow, work))

    async def _follow_services(self, engagement: Engagement) -> None:
        """Stop and start instances as the services of the cluster change; other instances continue."""
        async for cluster in engagement.changes():
            name, desired = cluster.name, instance_kinds(cluster)
            if self._announced.get(name) == desired:
                continue
            self._announced.pop(name, None)
            existing = {instance.kind: instance for instance in self._instances[name]}
            # The announcement names the removed services until their instances have ended. Only then may another
            # registration get these services.
            await self._end_instances(name, [existing.pop(kind) for kind in [*existing] if kind not in desired])
            self._instances[name] = tuple(existing.get(kind) or self._create(engagement, kind) for kind in desired)
            await self._bring_up(engagement)
            self._update(name)

    @staticmethod
    def _keep(engagement: Engagement, what: str, run: Callable[[], Awaitable[None]]) -> None:
        _ = engagement.spawn(keep_running(f"{engagement.cluster.name}: {what}", run), name=what)

    def _create(self, engagement: Engagement, kind: InstanceKind) -> Instance:
        cluster = engagement.cluster
        return Instance(
            cluster,
            runtime=self._runtime,
            changed=lambda: self._update(cluster.name),
            kind=kind,
            generation=engagement.generation,
            flags=self._flags if kind is InstanceKind.CONTROLLERS else self._scheduler_flags,
            programs=self._programs,
            readers=self._readers,
            oom_kills=self._oom_kills,
            permit=self._permit(engagement, kind),
        )

    def _permit(self, engagement: Engagement, kind: InstanceKind) -> StartPermit:
        cluster, holder, pace = engagement.cluster, self._holder, self._gate_pace or GatePace()
        lease = TenantLease(cluster, program=kind.program, holder=holder, timeout_seconds=pace.timeout)
        return StartPermit(
            cluster,
            owned_seconds=holder.before_write,
            lease=lease if self._gate_pace is not None else None,
            turn=Turn(self._budget),
            watchdog=self._watchdog,
            announcement=lambda: self._observer.confirm(engagement.cluster),
            timeout_seconds=pace.timeout,
            grace_seconds=pace.grace,
        )

    async def _wait_to_restart(self, component: str, failures: int) -> None:
        for instance in self.all():
            if instance.component == component:
                await instance.permit.turn.acquire_restart(failures)

    def _update(self, name: str) -> None:
        summary = summarize(self._instances[name])
        if summary is not None:
            self._observer.update(name, summary.reason, message=summary.message)

    async def _end(self, name: str) -> None:
        with log_fields(cluster=name):
            try:
                await self._end_instances(name, self._instances[name])
            finally:
                del self._instances[name]
                self._announced.pop(name, None)
            await self._observer.end(name)

    async def _end_instances(self, name: str, instances: Sequence[Instance]) -> None:
        """Stop some instances of a cluster, retry until their processes have ended, and remove their files.

        Files that cannot be removed are reported, and `Leftovers` retries.
        """
        backoff = Backoff(initial_seconds=1.0, maximum_seconds=60.0)
        for instance in instances:
            if (work := self._works.pop(instance.component, None)) is not None:
                await work.aclose()
        while failures := await _close(instances):
            # Until the processes have ended, no other instance may start for this registration, and its control plane
            # must not be removed.
            message, delay = " ".join(map(str, failures)), backoff.next_delay()
            self._observer.update(name, Reason.STOP_FAILED, message=message)
            logger.error("failed to stop the instances of %s, retry in %.1f s: %s", name, delay, message)
            await asyncio.sleep(delay)
        if problem := await self._leftovers.remove(instance.component for instance in instances):
            # All processes have ended. Waiting for the files would keep other clusters of the same shard from moving.
            self._observer.update(name, Reason.STOP_FAILED, message=problem)


async def _close(instances: Iterable[Instance]) -> list[BaseException]:
    """Close all instances, also instances that an earlier call closed. Return the exceptions."""
    ends = await asyncio.gather(*(instance.aclose() for instance in instances), return_exceptions=True)
    return [end for end in ends if isinstance(end, BaseException)]
