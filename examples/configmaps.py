"""Reconciles the ConfigMaps of a fleet of clusters.

    python examples/configmaps.py kind --prefix fleet-
    python examples/configmaps.py files ~/clusters prod.kubeconfig
    python examples/configmaps.py registrations --kubeconfig management.kubeconfig

It logs each ConfigMap, and writes the name of the cluster into each ConfigMap with the label `demo: stamp`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import uvloop

from kplane.provider import Client, ClusterConfig, Manager, NotFound, Provider, Request
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.controllers.builder import controller
from kplane.provider.logs import json_logging
from kplane.provider.providers.file import FileProvider
from kplane.provider.providers.kind import KindProvider
from kplane.provider.providers.kplane import RegistrationProvider

log = logging.getLogger("configmaps")

STAMP = "demo/cluster"


class ConfigMaps:
    """Reconciles one ConfigMap of one cluster."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager

    async def reconcile(self, request: Request) -> None:
        """Stamp the ConfigMap if it asks for a stamp. The manager calls this after each event, and retries errors."""
        cluster = self.manager.get_cluster(request.cluster)
        try:
            found = await cluster.cache.get(CONFIG_MAPS, request)
        except NotFound:
            log.info("gone")
            return
        log.info("seen")
        metadata = found["metadata"]
        stamped = metadata.get("annotations", {}).get(STAMP) == request.cluster
        if metadata.get("labels", {}).get("demo") == "stamp" and not stamped:
            stamp = {"metadata": {"annotations": {STAMP: request.cluster}}}
            await cluster.client.patch(CONFIG_MAPS, request.name, stamp, namespace=request.namespace)
            log.info("stamped")


async def run(provider: Provider) -> None:
    """Run the controller on the provider's clusters until SIGINT or SIGTERM."""
    manager = Manager(None, provider)
    controller(manager).named("configmaps").for_(CONFIG_MAPS).build(ConfigMaps(manager).reconcile)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await manager.run(stop)


@contextlib.asynccontextmanager
async def chosen(given: argparse.Namespace) -> AsyncIterator[Provider]:
    """Open the provider that the command line names."""
    if given.source == "kind":
        yield KindProvider(prefix=given.prefix)
    elif given.source == "files":
        yield FileProvider(
            files=[path for path in given.paths if not path.is_dir()],
            directories=[path for path in given.paths if path.is_dir()],
        )
    else:
        async with Client(ClusterConfig.load(given.kubeconfig)) as client:
            yield RegistrationProvider(client, services=frozenset({given.service}))


async def main() -> None:
    """Read the command line, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sources = parser.add_subparsers(dest="source", required=True, metavar="SOURCE")
    kind = sources.add_parser("kind", help="kind clusters on this machine")
    kind.add_argument("--prefix", default="", help="use only clusters whose name starts with this")
    files = sources.add_parser("files", help="each context of kubeconfig files")
    files.add_argument("paths", nargs="*", type=Path, help="files, or directories of files; default: as kubectl")
    registrations = sources.add_parser("registrations", help="control planes with a registration for a service")
    registrations.add_argument("--kubeconfig", type=Path, required=True, help="kubeconfig of the management cluster")
    registrations.add_argument("--service", default="controllers", help="name of the service; default: %(default)s")
    given = parser.parse_args()
    with json_logging("INFO"):
        async with chosen(given) as provider:
            await run(provider)


if __name__ == "__main__":
    uvloop.run(main())
