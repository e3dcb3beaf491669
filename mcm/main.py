"""The multicluster controller manager's process."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

import uvloop
from provider.providers.registration import RegistrationProvider

from api import Service
from mcm.instances import Instances
from mcm.settings import Settings
from mcm.status import serve_status
from provider import Client, ClusterConfig, KubeconfigError, Manager
from provider.logs import json_logging
from workloads import ProcessRuntime, WorkloadsError

__all__ = ["main", "run"]

log: Final = logging.getLogger(__name__)

_INSTANCE_HOST: Final = "127.0.0.1"


async def run(settings: Settings, *, until: asyncio.Event) -> None:
    """Run until the event is set; afterwards no instance is left.

    Raises KubeconfigError, WorkloadsError and OSError where the process cannot do its work at all.
    """
    config = ClusterConfig.load(settings.kubeconfig) if settings.kubeconfig is not None else ClusterConfig.in_cluster()
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(
            ProcessRuntime(settings.state_directory, programs=settings.programs, host=_INSTANCE_HOST)
        )
        # Instances die with their mcm; what a killed one left in its directory are keys of tenants.
        await asyncio.gather(*(runtime.delete(name) for name in runtime.names()))
        client = await stack.enter_async_context(Client(config))
        instances = Instances(runtime, host=_INSTANCE_HOST)
        provider = RegistrationProvider(client, services=frozenset({Service.CONTROLLERS}))
        manager = await stack.enter_async_context(Manager(provider, awares=[instances]))
        await stack.enter_async_context(
            serve_status(
                settings.host,
                port=settings.port,
                instances=instances.list,
                failure=manager.clusters.failure,
                synced=lambda: provider.synced,
            )
        )
        log.info("following the registrations of %s", config.server)
        await until.wait()
        log.info("stopping")


async def _run_until_signal(settings: Settings) -> None:
    until = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, until.set)
    await run(settings, until=until)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run mcm until SIGTERM or SIGINT. Exits with 1 and a message where it cannot start."""
    settings = Settings.parse(arguments)
    with json_logging(settings.log_level):
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_run_until_signal(settings))
        except (KubeconfigError, WorkloadsError, OSError) as error:
            log.critical("mcm cannot run: %s", error)
            sys.exit(1)


if __name__ == "__main__":
    main()
