"""Notes on each Cluster of Cluster API how many of its nodes are ready.

python examples/capi/nodes.py --kubeconfig management.kubeconfig
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from kplane.provider import Client, Cluster, ClusterConfig, Manager, ObjectKey, Request, controller, enqueue_mapped, run
from kplane.provider.objects import is_condition_true
from kplane.provider.providers.capi import ClusterApiProvider

log = logging.getLogger("nodes")

CLUSTERS: Final = "cluster.x-k8s.io/v1beta2/Cluster"
NODES_READY: Final = "example.com/nodes-ready"


def lead_to_cluster(cluster: Cluster, _node: dict[str, Any]) -> Iterable[ObjectKey]:
    """Lead from all nodes to one request, which names the Cluster: the provider names it `<namespace>/<name>`."""
    return [ObjectKey(*cluster.name.split("/"))]


def read_command_line() -> argparse.Namespace:
    """Read where Cluster API is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubeconfig", type=Path, required=True, help="kubeconfig of the management cluster")
    return parser.parse_args()


async def main(stop: asyncio.Event) -> None:
    """Work until `stop` is set."""
    config = ClusterConfig.load(read_command_line().kubeconfig)
    async with Client(config, field_manager="nodes") as client:
        manager = Manager(config, ClusterApiProvider(client), name="nodes")

        async def reconcile(request: Request, cluster: Cluster) -> None:
            nodes = await cluster.cache.list("v1/Node")
            note = f"{sum(is_condition_true(node, 'Ready') for node in nodes)}/{len(nodes)}"
            noted = await manager.local.cache.get(CLUSTERS, request, metadata_only=True)
            if noted["metadata"].get("annotations", {}).get(NODES_READY) != note:
                await manager.local.client.patch(CLUSTERS, request, {"metadata": {"annotations": {NODES_READY: note}}})
                log.info("%s nodes are ready", note)

        controller(manager).named("nodes").watches("v1/Node", enqueue_mapped(lead_to_cluster)).build(reconcile)
        await manager.run(stop)


if __name__ == "__main__":
    run(main)
