"""A replica of a sharded manager, as a program. It copies a ConfigMap of the hub into each member.

    python hub_replica.py KUBECONFIG NAMESPACE IDENTITY CLUSTERS

Hub and members share an API server. The ConfigMap of the hub is `wanted`. Each member has a ConfigMap of its name.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

# This module is in the folder of this program.
from sharded_replica import TIMINGS

from kplane.provider import (
    Client,
    Cluster,
    ClusterConfig,
    Manager,
    Request,
    Sharded,
    controller,
    engage,
    enqueue_mapped,
    run,
)
from kplane.provider.controllers.builder import predicates
from kplane.provider.controllers.predicates import in_namespaces
from kplane.provider.providers.clusters import ClustersProvider


async def main(stop: asyncio.Event) -> None:
    """Run a manager until SIGTERM."""
    kubeconfig, namespace, identity, count = sys.argv[1:]
    config = ClusterConfig.load(Path(kubeconfig))
    members = [f"cluster-{number}" for number in range(int(count))]
    async with Client(config) as client:
        fleet = ClustersProvider()
        sharded = Sharded(client, namespace=namespace, identity=identity, shards=8, timings=TIMINGS)
        manager = Manager(config, fleet, coordinator=sharded, name="test")

        async def reconcile(request: Request, cluster: Cluster) -> None:
            wanted = await manager.local.cache.get("v1/ConfigMap", "wanted", namespace=namespace)
            copied = {"data": {wanted["data"]["value"]: identity}}
            await cluster.client.patch("v1/ConfigMap", cluster.name, copied, namespace=namespace)

        def spread(_hub: Cluster, found: dict[str, object]) -> list[Request]:
            metadata = found["metadata"]
            wanted = isinstance(metadata, dict) and metadata["name"] == "wanted"
            return [Request(name, namespace, "wanted") for name in members] if wanted else []

        hub = engage(local=True, provider=False)
        handler = enqueue_mapped(spread, preserve_cluster=True)
        builder = controller(manager).named("spread")
        builder.watches("v1/ConfigMap", handler, hub, predicates(in_namespaces(namespace))).build(reconcile)
        for name in members:
            await fleet.add(Cluster(name, config=config))
        await manager.run(stop)


if __name__ == "__main__":
    logging.getLogger().setLevel(logging.INFO)
    run(main)
