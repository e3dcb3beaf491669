"""Stamps ConfigMaps of many clusters from several replicas, which divide the clusters among themselves.

Each namespace with the label `demo: fleet` stands for a cluster here. Put another provider in the place of
NamespaceProvider for real ones.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket

from kplane.provider import Client, Cluster, ClusterConfig, Manager, Request, Sharded, controller, run
from kplane.provider.objects import or_none
from kplane.provider.providers.namespace import NamespaceProvider
from kplane.provider.serving.http import Serving

log = logging.getLogger("sharded")

NAMESPACE = os.environ.get("POD_NAMESPACE", "default")
"""Where the Leases are, by which the replicas divide the clusters."""

REPLICA = os.environ.get("POD_NAME") or socket.gethostname()
"""No other replica may have this name."""

PORT = int(os.environ.get("PORT", "8080"))
"""Of metrics and probes."""


async def reconcile(request: Request, cluster: Cluster) -> None:
    """Write into the ConfigMap which replica has seen its present data."""
    found = await or_none(cluster.cache.get("v1/ConfigMap", request))
    if found is None:
        return
    text = found.get("data", {}).get("text")
    annotations = found["metadata"].get("annotations", {})
    if text is not None and annotations.get("demo/seen") != text:
        seen = {"demo/seen": text, "demo/replica": REPLICA}
        await cluster.client.patch("v1/ConfigMap", request, {"metadata": {"annotations": seen}})
        log.info("stamped")


async def main(stop: asyncio.Event) -> None:
    """Work on this replica's part of the clusters until `stop` is set."""
    config = ClusterConfig.default()
    host = Cluster("host", config=config)
    async with Client(config, field_manager="sharded-example") as client:
        coordinator = Sharded(client, namespace=NAMESPACE, identity=REPLICA)
        provider = NamespaceProvider(host, label_selector="demo=fleet")
        manager = Manager(config, provider, name="sharded-example", coordinator=coordinator)
        manager.add(Serving(manager, host="0.0.0.0", port=PORT))  # noqa: S104 - of the pod
        controller(manager).for_("v1/ConfigMap").build(reconcile)
        await manager.run(stop)
    await host.aclose()


if __name__ == "__main__":
    run(main)
