"""A replica of a sharded manager, as a program. Each reconcile writes its name into a ConfigMap of the cluster.

    python sharded_replica.py KUBECONFIG NAMESPACE IDENTITY CLUSTERS

The clusters `cluster-0`, `cluster-1` and so on share one API server. Each has a ConfigMap of its name.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from kplane.provider import Client, Cluster, ClusterConfig, Manager, Request, Result
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.controllers.builder import controller, predicates
from kplane.provider.controllers.predicates import in_namespaces
from kplane.provider.coordination.sharded import Sharded
from kplane.provider.coordination.shards import ShardTimings
from kplane.provider.providers.clusters import ClustersProvider

TIMINGS = ShardTimings(
    duration_seconds=5,
    renew_seconds=1.0,
    retry_seconds=0.2,
    drain_seconds=1.5,
    peer_seconds=10,
    peer_renew_seconds=1.0,
    probe_seconds=1.0,
)
SHARDS = 8
GRACE_SECONDS = 0.5
PAUSE_SECONDS = 0.1


async def main(kubeconfig: Path, namespace: str, identity: str, clusters: int) -> None:
    """Run a manager until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    config = ClusterConfig.load(kubeconfig)
    async with Client(config) as client:
        coordinator = Sharded(client, namespace=namespace, identity=identity, shards=SHARDS, timings=TIMINGS)
        fleet = ClustersProvider()
        manager = Manager(None, fleet, coordinator=coordinator, name="test")
        writer = f"{identity}/{os.getpid()}"

        async def reconcile(request: Request) -> Result | None:
            if request.name != request.cluster:
                return None
            cluster = manager.get_cluster(request.cluster)
            await cluster.client.patch(CONFIG_MAPS, request.name, {"data": {"writer": writer}}, namespace=namespace)
            return Result(requeue_after_seconds=PAUSE_SECONDS)

        watched = predicates(in_namespaces(namespace))
        options = {"workers": 4, "grace_seconds": GRACE_SECONDS}
        controller(manager).named("writer").for_("v1/ConfigMap", watched).with_options(**options).build(reconcile)
        for number in range(clusters):
            await fleet.add(Cluster(f"cluster-{number}", config=config))
        await manager.run(stop)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])))
