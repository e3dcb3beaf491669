"""Writes into the ConfigMap default/leader which of several processes leads. The others wait for its Lease.

    python examples/leader.py one
    python examples/leader.py two    # in another terminal: it takes over when the first ends

The cluster is that of the environment's kubeconfig.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from kplane.provider import (
    CacheScope,
    Client,
    Cluster,
    ClusterConfig,
    Election,
    Leader,
    Lease,
    Manager,
    Request,
    controller,
    run,
)

log = logging.getLogger("leader")


async def main(stop: asyncio.Event) -> None:
    """Work while this process leads, until `stop` is set."""
    name, config = sys.argv[1], ClusterConfig.default()

    async def reconcile(request: Request, cluster: Cluster) -> None:
        config_map = {"metadata": {"namespace": request.name, "name": "leader"}, "data": {"leader": name}}
        await cluster.client.apply("v1/ConfigMap", config_map, force=True)
        log.info("%s leads", name)

    async with Client(config, field_manager="leader-example") as client:
        lease = Lease(client, namespace="default", name="leader-example", identity=name)
        scopes = {"v1/Namespace": CacheScope(name="default")}
        manager = Manager(config, coordinator=Leader(Election(lease)), cache_scopes=scopes, name="leader-example")
        controller(manager).for_("v1/Namespace").build(reconcile)
        await manager.run(stop)


if __name__ == "__main__":
    run(main)
