"""Command `kplane-gateway`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Final

from kplane.gateway.control_planes import request_wake
from kplane.gateway.controller import Controller
from kplane.gateway.data_plane import DataPlane
from kplane.gateway.errors import GatewayError
from kplane.gateway.freshness import Freshness
from kplane.gateway.presence import Presence, read_newest_progress, replica_of
from kplane.gateway.program import EnvoyValidator
from kplane.gateway.settings import Settings
from kplane.gateway.status import serve_status
from kplane.gateway.waker import Waker
from kplane.provider import Client, ClusterConfig, ProviderError
from kplane.provider.serving.process import run_process
from kplane.workloads import ProcessRuntime, Runtime, WorkloadsError
from kplane.workloads.cpus import usable_cpus

__all__ = ["main", "run"]

logger = logging.getLogger(__name__)

_USAGE_SECONDS: Final = 60.0
"""Seconds between two reports of use of a control plane. The shortest idle time of a ControlPlaneClass is twice this
interval, so that a control plane in use stays awake.
"""
_MOST_WORKERS: Final = 4


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the gateway until SIGTERM or SIGINT.

    Exits with status 0 after a clean stop, and with status 1 if the gateway cannot run.
    """
    settings = Settings.parse(arguments)
    run_process(
        lambda stop: run(settings, until=stop),
        name="the gateway",
        log_level=settings.log_level.upper(),
        expected=(GatewayError, ProviderError, WorkloadsError),
    )


def _workers() -> int:
    # Measured on two CPUs with 16 connections, relative to direct connections: two workers reached a throughput of
    # 0.68, and a single worker 0.78. A second worker takes CPU time from the API servers.
    return min(_MOST_WORKERS, max(1, usable_cpus() // 2))


async def run(settings: Settings, *, until: asyncio.Event, usage_seconds: float = _USAGE_SECONDS) -> None:
    """Run the gateway until the event `until` is set.

    `usage_seconds` is the interval between two reports of use of a control plane. Envoy keeps running afterwards: it
    serves during an upgrade of the gateway, and the next gateway finds it again. Raises GatewayError, ProviderError or
    WorkloadsError if the gateway fails.
    """
    config = ClusterConfig.load(settings.kubeconfig) if settings.kubeconfig else ClusterConfig.in_cluster()
    directory = settings.state_dir / "envoy"
    async with _runtime(settings) as runtime, Client(config, field_manager="kplane-gateway") as client:
        validator = EnvoyValidator(settings.envoy, directory=directory)
        validator.remove_leftovers()
        plane = DataPlane(
            directory,
            validate=validator,
            program=settings.envoy,
            runtime=runtime,
            waker=Waker(functools.partial(request_wake, client)),
            workers=settings.workers or _workers(),
            memory_bytes=settings.envoy_memory,
        )
        controller = Controller(
            client,
            plane,
            namespace=settings.namespace,
            host=settings.serve.host,
            port=settings.serve.port,
            certificates=settings.certificate_dir,
            usage_seconds=usage_seconds,
        )
        presence = Presence(
            client,
            plane,
            namespace=settings.namespace,
            replica=replica_of(settings.state_dir),
            served=lambda: controller.served,
        )
        plane.on_hold(presence.look)
        controller.on_served = presence.look
        freshness = Freshness(
            functools.partial(read_newest_progress, client, namespace=settings.namespace), controller.has
        )
        # A replica that is cut off from the management cluster, or behind other replicas, may have missed new control
        # planes. So it must not refuse their paths as unknown.
        plane.on_refusal(lambda: controller.is_current and presence.is_current, freshness.wait)
        async with (
            plane.running(),
            serve_status(settings.listen, controller=controller, plane=plane),
            contextlib.aclosing(freshness),
        ):
            logger.info("serves control planes of %s at %s", config.server, settings.serve)
            controller_task = asyncio.create_task(controller.run(), name="controller")
            presence_task = asyncio.create_task(presence.run(), name="presence")
            stop_task = asyncio.create_task(until.wait(), name="wait for the request to stop")
            await asyncio.wait((controller_task, presence_task, stop_task), return_when=asyncio.FIRST_COMPLETED)
            for task in (controller_task, presence_task, stop_task):
                task.cancel()
            await asyncio.wait((controller_task, presence_task, stop_task))
            if not settings.run_envoy:
                # In a pod, the container of Envoy stops before the container of the controller.
                await presence.leave()
            for task in (controller_task, presence_task):
                if not task.cancelled():
                    task.result()


@contextlib.asynccontextmanager
async def _runtime(settings: Settings) -> AsyncIterator[Runtime | None]:
    if not settings.run_envoy:
        settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield None
        return
    async with ProcessRuntime(settings.state_dir / "runtime", programs=[]) as runtime:
        yield runtime


if __name__ == "__main__":
    main()
