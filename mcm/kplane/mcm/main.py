"""The command `mcm`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Final

from kplane.api import KubernetesVersion
from kplane.mcm.describe.certificate import ReaderCertificate
from kplane.mcm.describe.controllers import PROGRAM
from kplane.mcm.describe.flags import check_flags
from kplane.mcm.describe.programs import Programs
from kplane.mcm.describe.scheduler import SCHEDULER_PROGRAM
from kplane.mcm.errors import McmError
from kplane.mcm.fleet import Instances
from kplane.mcm.instance.leftovers import Leftovers
from kplane.mcm.instance.logs import InstanceLog, InstanceLogs, LogForm
from kplane.mcm.instance.memory import MemoryCeiling
from kplane.mcm.instance.start_gate import GatePace
from kplane.mcm.placement.holder import lease_holder
from kplane.mcm.placement.lease_enforcer import LeaseEnforcer
from kplane.mcm.placement.sharding import coordinating, shard_metrics
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
from kplane.workloads import ProcessRuntime, Runtime, WorkloadsError, landlock_version

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
    await _check_flags(settings)
    if not landlock_version():
        logger.warning(
            "this kernel offers no Landlock: an instance can read the keys of all control planes of this mcm; see"
            " docs/how-to/harden.md"
        )
    config = ClusterConfig.load(settings.kubeconfig) if settings.kubeconfig else ClusterConfig.in_cluster()
    reader = ReaderCertificate.create() if settings.instance_metrics is not InstanceMetrics.NONE else None
    async with (
        ProcessRuntime(settings.state_dir, programs=settings.programs_dir, log_limit_bytes=LOG_BYTES) as runtime,
        Client(config, field_manager="mcm") as client,
        coordinating(
            settings.sharding, config=config, unused=lambda among: settings.report_status and feed.unused(among)
        ) as coordinator,
    ):
        leftovers = Leftovers(runtime)
        await leftovers.remove_former()
        version = await _version(runtime)
        programs = Programs(settings.programs_dir, runtime=runtime, first=KubernetesVersion.parse(version))
        feed = settings.source.follow(client, mine=coordinator.may_work)
        seconds_left = coordinator.require_write if settings.sharding else None
        lease_enforcer = LeaseEnforcer(settings.state_dir)
        holder = lease_holder(
            settings.state_dir,
            sharding=settings.sharding,
            uid=feed.uid,
            before_write=seconds_left,
        )
        async with _observer(settings, feed=feed, client=client, coordinator=coordinator, version=version) as observer:
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
                holder=holder,
            )
            provider: Provider = DebouncingProvider(feed.provider, programs=programs, flags=settings.instance_flags)
            if feed.endpoints is not None:
                # Registrations need no such choice: the operator gives each service of a control plane to a single
                # registration.
                provider = only = OnePerServerProvider(provider, age=feed.age, refused=observer.report_failure)
                _at_handover(coordinator, noting_elsewhere(only, endpoints=feed.endpoints, mine=coordinator.may_work))
            _at_handover(coordinator, feed.look_again)
            manager = Manager(config, provider, awares=[instances], coordinator=coordinator, name="mcm")
            overview = Overview(manager.clusters, instances=instances, mine=coordinator.may_work)
            async with (
                kept_running("removal of leftovers", partial(leftovers.run, instances.components)),
                _status(settings, overview=overview, reader=reader, coordinator=coordinator, synced=feed.synced),
                lease_enforcer.running(instances.all, stop=until),
                _memory_ceiling(settings, instances=instances),
                _logs(settings, instances=instances, runtime=runtime),
            ):
                logger.info("mcm runs an instance for every %s at %s", settings.source.kind, config.server)
                await manager.run(until)
                logger.info("all instances have ended")


async def _check_flags(settings: Settings) -> None:
    if settings.instance_flags:
        await check_flags(settings.instance_flags, program=PROGRAM, directories=settings.programs_dir)
    if settings.scheduler_flags:
        await check_flags(settings.scheduler_flags, program=SCHEDULER_PROGRAM, directories=settings.programs_dir)


def _at_handover(coordinator: Coordinator, listener: Callable[[], None]) -> None:
    """Call the listener each time that this mcm has acquired or lost control planes."""
    if isinstance(coordinator, Sharded):
        coordinator.listen(listener)
        coordinator.listen_lost(listener)


@contextlib.asynccontextmanager
async def _observer(
    settings: Settings, *, feed: ClusterFeed, client: Client, coordinator: Coordinator, version: str | None
) -> AsyncIterator[InstanceObserver]:
    """Yield the observer of instances: it posts Events, and with --report-status writes the status of registrations."""
    registrations = feed.registrations
    async with contextlib.AsyncExitStack() as stack:
        observer: InstanceObserver = NullReporter(registration=None)
        if registrations is not None:
            observer = NullReporter(registration=registrations.registration, mode=settings.source.mode)
        if registrations is not None and settings.report_status:
            observer = reports = StatusReporter(
                client,
                registration=registrations.registration,
                version=version,
                mine=lambda registration: coordinator.may_work(registration["metadata"]["name"]),
                before_write=coordinator.require_write,
                mode=settings.source.mode,
                has_to_announce=settings.has_to_announce,
            )
            registrations.listen(reports.look)
            if isinstance(coordinator, Sharded):
                coordinator.listen(
                    lambda: reports.take_over(name for name in registrations.names() if coordinator.may_work(name))
                )
            await stack.enter_async_context(reports.running())
        recorder = EventRecorder(lambda: client, component="mcm")
        await stack.enter_async_context(contextlib.aclosing(recorder))
        yield Events(observer, recorder=recorder, resource=feed.resource, seen=feed.seen)


@contextlib.asynccontextmanager
async def _status(
    settings: Settings,
    *,
    overview: Overview,
    reader: ReaderCertificate | None,
    coordinator: Coordinator,
    synced: Callable[[], bool],
) -> AsyncIterator[None]:
    """Serve health and metrics. Metrics of instances are read with the certificate of `reader`; None: they are not."""
    async with Scraper(reader) if reader is not None else contextlib.nullcontext() as scraper:
        metrics = Metrics(
            overview,
            scraper=scraper,
            more=lambda: shard_metrics(coordinator),
        )
        sources = settings.source.kind.plural
        async with serve_status(settings.listen, overview=overview, metrics=metrics, sources=sources, synced=synced):
            yield


def _memory_ceiling(settings: Settings, *, instances: Instances) -> contextlib.AbstractAsyncContextManager[None]:
    if not settings.instance_memory_mib:
        return contextlib.nullcontext()
    return MemoryCeiling(instances.all, limit_bytes=settings.instance_memory_mib << 20).kept()


@contextlib.asynccontextmanager
async def _logs(settings: Settings, *, instances: Instances, runtime: ProcessRuntime) -> AsyncIterator[None]:
    if settings.instance_logs is LogForm.FILES:
        yield
        return

    def present() -> list[InstanceLog]:
        return [
            InstanceLog(instance, instance.cluster.name, runtime.log_path(instance.component))
            for instance in instances.all()
        ]

    # A separate stream: Python flushes `sys.stdout` at exit, and would wait for a slow reader.
    stream = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    logs = InstanceLogs(present, form=settings.instance_logs, stream=stream)
    unsubscribe = runtime.subscribe(logs.look)
    try:
        async with logs.running():
            yield
    finally:
        unsubscribe()


async def _version(runtime: Runtime) -> str | None:
    """Return the version of kube-controller-manager; None if unknown. The start of an instance reports the failure."""
    try:
        version = await runtime.version(PROGRAM)
    except WorkloadsError as error:
        logger.debug("failed to find out the version of %s: %s", PROGRAM, error)
        return None
    return f"v{version}" if version is not None else None


if __name__ == "__main__":
    main()
