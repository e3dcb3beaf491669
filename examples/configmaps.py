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
from collections.abc import AsyncGenerator
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
    found = await or_none(cluster.cache.get("v1/ConfigMap", request))
    if found is None:
        log.info("gone")
        return
    log.info("seen")
    metadata = found["metadata"]
    stamped = metadata.get("annotations", {}).get(STAMP) == cluster.name
    if metadata.get("labels", {}).get("demo") == "stamp" and not stamped:
        await cluster.client.patch("v1/ConfigMap", request, {"metadata": {"annotations": {STAMP: cluster.name}}})
        log.info("stamped")


@contextlib.asynccontextmanager
async def chosen(given: argparse.Namespace) -> AsyncGenerator[Provider]:
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


def read_command_line() -> argparse.Namespace:
    """Read which clusters to work on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sources = parser.add_subparsers(dest="source", required=True, metavar="SOURCE")
    kind = sources.add_parser("kind", help="kind clusters on this machine")
    kind.add_argument("--prefix", default="", help="use only clusters whose name starts with this")
    files = sources.add_parser("files", help="each context of kubeconfig files")
    files.add_argument("paths", nargs="*", type=Path, help="files, or directories of files; default: as kubectl")
    registrations = sources.add_parser("registrations", help="control planes with a registration for a service")
    registrations.add_argument("--kubeconfig", type=Path, required=True, help="kubeconfig of the management cluster")
    registrations.add_argument("--service", default="controllers", help="name of the service; default: %(default)s")
    return parser.parse_args()


async def main(stop: asyncio.Event) -> None:
    """Run the controller on the provider's clusters until `stop` is set."""
    async with chosen(read_command_line()) as provider:
        manager = Manager(None, provider, name="configmaps")
        controller(manager).for_("v1/ConfigMap").build(reconcile)
        await manager.run(stop)


if __name__ == "__main__":
    run(main)
