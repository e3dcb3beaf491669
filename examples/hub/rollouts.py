"""Copies the Rollouts of a hub to the members of its fleet, and reports in their status which members have the copy.

    python examples/hub/rollouts.py default
    python examples/hub/rollouts.py default one    # for several processes, which share the members

The hub is the cluster of the environment's kubeconfig. A member is a Secret with a kubeconfig in the
namespace `default`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

from kplane.provider import CacheScope, Client, Cluster, ClusterConfig, Manager, Request, Sharded, errors, objects, run
from kplane.provider.cache.event import Event
from kplane.provider.controllers.builder import controller, engage, predicates
from kplane.provider.controllers.predicates import generation_changed
from kplane.provider.providers.secrets import KubeconfigProvider

ROLLOUT: Final = "fleet.example.com/v1/Rollout"
LABEL: Final = "fleet.example.com/rollout"


async def main(stop: asyncio.Event) -> None:
    """Work until `stop` is set."""
    config, namespace, peer = ClusterConfig.default(), sys.argv[1], sys.argv[2:]
    async with Client(config, field_manager="rollouts") as client:
        # The caches keep no ConfigMaps but the copies.
        scopes = {"v1/ConfigMap": CacheScope(label_selector=LABEL)}
        sharded = Sharded(client, namespace=namespace, identity=peer[0]) if peer else None
        provider = KubeconfigProvider(client, namespace=namespace)
        manager = Manager(config, provider, coordinator=sharded, cache_scopes=scopes, name="rollouts")

        def in_each_member(_hub: Cluster, event: Event) -> list[Request]:
            return [Request(member, event.namespace, event.name) for member in manager.cluster_names()]

        async def reconcile(request: Request, member: Cluster) -> None:
            rollout = await objects.or_none(manager.local.cache.get(ROLLOUT, request))
            if rollout is None:
                if await objects.or_none(member.cache.get("v1/ConfigMap", request)) is not None:
                    await objects.or_none(member.client.delete("v1/ConfigMap", request))
                return

            def write(config_map: dict[str, Any]) -> None:
                if LABEL not in config_map["metadata"].get("labels", {}):
                    raise errors.ObjectTaken(f"ConfigMap {request} is no copy: delete or rename it")
                config_map["data"] = rollout["spec"]["data"]

            metadata = {"namespace": request.namespace, "name": request.name, "labels": {LABEL: ""}}
            copy = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
            await objects.create_or_update(member.client, copy, write, cache=member.cache)
            entry = {member.name: rollout["metadata"]["generation"]}
            if not entry.items() <= rollout.get("status", {}).get("members", {}).items():
                await manager.local.client.patch(ROLLOUT, request, {"status": {"members": entry}}, subresource="status")

        # A status is written for each member. Its events lead to no work in the other members.
        hub = engage(local=True, provider=False), predicates(generation_changed())
        controller(manager).for_("v1/ConfigMap").watches(ROLLOUT, in_each_member, *hub).build(reconcile)
        await manager.run(stop)


run(main)
