"""Reconciles the ConfigMaps of a fleet of clusters.

    python examples/configmaps.py kind fleet-    # kind clusters whose names start with fleet-
    python examples/configmaps.py files clusters    # each context of the kubeconfigs in a directory
    python examples/configmaps.py registrations management.kubeconfig controllers    # control planes, by their service

It logs each ConfigMap, and writes the name of the cluster into each ConfigMap with the label `demo: stamp`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from kplane.provider import Client, Cluster, ClusterConfig, Manager, Provider, Request, controller, run
from kplane.provider.objects import or_none
from kplane.provider.providers.file import FileProvider
from kplane.provider.providers.kind import KindProvider
from kplane.provider.providers.kplane import RegistrationProvider

log = logging.getLogger("configmaps")

STAMP = "demo/cluster"


async def reconcile(request: Request, cluster: Cluster) -> None:
    """Stamp the ConfigMap if it asks for a stamp. The manager calls this after each event, and retries errors."""
    config_map = await or_none(cluster.cache.get("v1/ConfigMap", request))
    log.info("gone" if config_map is None else "seen")
    if config_map is None or config_map["metadata"].get("labels", {}).get("demo") != "stamp":
        return
    if config_map["metadata"].get("annotations", {}).get(STAMP) != cluster.name:
        await cluster.client.patch("v1/ConfigMap", request, {"metadata": {"annotations": {STAMP: cluster.name}}})
        log.info("stamped")


async def open_provider(arguments: list[str], *, stack: AsyncExitStack) -> Provider:
    """Open the provider that the command line names."""
    match arguments:
        case ["kind", prefix]:
            return KindProvider(prefix=prefix)
        case ["files", *directories]:
            return FileProvider(directories=directories)
        case ["registrations", kubeconfig, service]:
            client = Client(ClusterConfig.load(Path(kubeconfig)), field_manager="configmaps")
            await stack.enter_async_context(client)
            return RegistrationProvider(client, services=frozenset({service}))
        case _:
            sys.exit(__doc__)


async def main(stop: asyncio.Event) -> None:
    """Run the controller on the provider's clusters until `stop` is set."""
    async with AsyncExitStack() as stack:
        manager = Manager(None, await open_provider(sys.argv[1:], stack=stack), name="configmaps")
        controller(manager).for_("v1/ConfigMap").build(reconcile)
        await manager.run(stop)


if __name__ == "__main__":
    run(main)
