"""The command `mcm`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final

from kplane.api import KubernetesVersion
from kplane.mcm.describe.certificate import ReaderCertificate
from kplane.mcm.describe.controllers import PROGRAM
from kplane.mcm.describe.flags import check_flags
from kplane.mcm.describe.programs import Programs, find_version
from kplane.mcm.describe.scheduler import SCHEDULER_PROGRAM
from kplane.mcm.errors import McmError
from kplane.mcm.fleet import Instances
from kplane.mcm.instance.leftovers import Leftovers
from kplane.mcm.instance.logs import LogForm, forwarding
from kplane.mcm.instance.memory import MemoryCeiling
from kplane.mcm.instance.start_gate import GatePace
from kplane.mcm.placement.holder import lease_holder
from kplane.mcm.placement.lease_enforcer import LeaseEnforcer
from kplane.mcm.placement.sharding import coordinating, on_handover, shard_metrics
from kplane.mcm.serving.metrics import InstanceMetrics, Metrics
from kplane.mcm.serving.overview import Overview
from kplane.mcm.serving.scrape import Scraper
from kplane.mcm.serving.server import serve_status
from kplane.mcm.settings import Settings
from kplane.mcm.source.debounce import DebouncingProvider
from kplane.mcm.source.one_per_server import OnePerServerProvider, noting_elsewhere
from kplane.mcm.source.sources import ClusterFeed
from kplane.mcm.status.events import Events
from kplane.mcm.status.observer import InstanceObserver, NullReporter
from kplane.mcm.status.reporter import StatusReporter
from kplane.provider import Client, ClusterConfig, Manager, Provider, ProviderError, Sharded
from kplane.provider.aio.running import kept_running
from kplane.provider.cluster.recorder import EventRecorder
from kplane.provider.contracts import Coordinator
from kplane.provider.serving.process import run_process
from kplane.workloads import ProcessRuntime, WorkloadsError, landlock_version

__all__ = ["main", "run"]

logger = logging.getLogger(__name__)

LOG_BYTES: Final = 1 << 20
"""Limit of each of an instance's two log files. The directory may be in memory, and each tenant has an instance."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until SIGTERM or SIGINT. Exit with status 0 after a clean stop, and 1 after an error."""
    settings = Settings.parse(arguments)
    run_process(
        lambda stop: run(settings, until=stop),
        name="mcm",
        log_level=settings.log_level.upper(),
        expected=(McmError, ProviderError, WorkloadsError),
    )


async def run(settings: Settings, *, until: asyncio.Event) -> None:
    """Run until the event is set, and stop every instance. Raises McmError, ProviderError or WorkloadsError."""
    await check_flags(settings.instance_flags, program=PROGRAM, directories=settings.programs_dir)
    await check_flags(settings.scheduler_flags, program=SCHEDULER_PROGRAM, directories=settings.programs_dir)
    if not landlock_version():
        logger.warning(
            "this kernel offers no Landlock: an instance can read the keys of all control planes of this mcm; see"
            " docs/how-to/harden.md"
        )
    config = ClusterConfig.load(settings.kubeconfig) if settings.kubeconfig else ClusterConfig.in_cluster()
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        # Processes, the management cluster, and this mcm's share of the fleet. The stack closes them in reverse order:
        # no instance outlives the shard Lease of its cluster.
        runtime = await enter(
            ProcessRuntime(settings.state_dir, programs=settings.programs_dir, log_limit_bytes=LOG_BYTES)
        )
        client = await enter(Client(config, field_manager="mcm"))
        coordinator = await enter(
            coordinating(
                settings.sharding, config=config, unused=lambda among: settings.report_status and feed.unused(among)
            )
        )
        leftovers = Leftovers(runtime)
        await leftovers.remove_former()
        version = await find_version(PROGRAM, runtime=runtime)

        # Control planes come from registrations or endpoints.
        feed: ClusterFeed = settings.source.follow(client, mine=coordinator.may_work)
        programs = Programs(settings.programs_dir, runtime=runtime, first=KubernetesVersion.parse(version))
        provider: Provider = DebouncingProvider(feed.provider, programs=programs, flags=settings.instance_flags)
        reporter = await enter(_reporting(settings, feed=feed, client=client, coordinator=coordinator, version=version))
        recorder = await enter(contextlib.aclosing(EventRecorder(lambda: client, component="mcm")))
        observer = Events(reporter, recorder=recorder, resource=feed.resource, seen=feed.seen)
        if feed.endpoints is not None:
            # The operator gives each service of a control plane to one registration, so registrations need no choice.
            provider = only = OnePerServerProvider(provider, age=feed.age, refused=observer.report_failure)
            on_handover(coordinator, noting_elsewhere(only, endpoints=feed.endpoints, mine=coordinator.may_work))
        on_handover(coordinator, feed.look_again)

        # Each control plane gets its instances, which run while they have a permit.
        owned = coordinator.require_write if settings.sharding else None
        lease_enforcer = LeaseEnforcer(settings.state_dir)
        reader = ReaderCertificate.create() if settings.instance_metrics is not InstanceMetrics.NONE else None
        instances = Instances(
            runtime,
            observer=observer,
            flags=settings.instance_flags,
            scheduler_flags=settings.scheduler_flags,
            programs=programs,
            gate_pace=GatePace(),
            readers=reader.certificate if reader else None,
            watchdog=lease_enforcer.acquire,
            leftovers=leftovers,
            holder=lease_holder(settings.state_dir, sharding=settings.sharding, uid=feed.uid, before_write=owned),
        )
        manager = Manager(config, provider, awares=[instances], coordinator=coordinator, name="mcm")

        # Services of the process, which run until all instances have ended.
        await enter(kept_running("removal of leftovers", partial(leftovers.run, instances.components)))
        overview = Overview(manager.clusters, instances=instances, mine=coordinator.may_work)
        scraper = await enter(Scraper(reader)) if reader else None
        metrics = Metrics(overview, scraper=scraper, more=partial(shard_metrics, coordinator))
        sources = settings.source.kind.plural
        await enter(
            serve_status(settings.listen, overview=overview, metrics=metrics, sources=sources, synced=feed.synced)
        )
        await enter(lease_enforcer.running(instances.all, stop=until))
        if settings.instance_memory_mib:
            await enter(MemoryCeiling(instances.all, limit_bytes=settings.instance_memory_mib << 20).kept())
        if settings.instance_logs is not LogForm.FILES:
            await enter(forwarding(instances.all, runtime=runtime, form=settings.instance_logs))

        logger.info("mcm runs an instance for every %s at %s", settings.source.kind, config.server)
        await manager.run(until)
        logger.info("all instances have ended")


@contextlib.asynccontextmanager
async def _reporting(
    settings: Settings, *, feed: ClusterFeed, client: Client, coordinator: Coordinator, version: str | None
) -> AsyncIterator[InstanceObserver]:
    """Yield the observer that checks registrations before a start. With --report-status, it writes their status."""
    registrations, mode = feed.registrations, settings.source.mode
    if registrations is None or not settings.report_status:
        yield NullReporter(registration=registrations.registration if registrations else None, mode=mode)
        return
    reporter = StatusReporter(
        client,
        registration=registrations.registration,
        version=f"v{version}" if version is not None else None,
        mine=lambda registration: coordinator.may_work(registration["metadata"]["name"]),
        before_write=coordinator.require_write,
        mode=mode,
        has_to_announce=settings.has_to_announce,
    )
    registrations.listen(reporter.look)
    if isinstance(coordinator, Sharded):
        coordinator.listen(lambda: reporter.take_over(filter(coordinator.may_work, registrations.names())))
    async with reporter.running():
        yield reporter


if __name__ == "__main__":
    main()
