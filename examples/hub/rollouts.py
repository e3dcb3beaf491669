"""Copies the Rollouts of a hub to the clusters of its fleet, and reports on the hub what each cluster has.

    python examples/hub/rollouts.py --kubeconfig hub.kubeconfig
    python examples/hub/rollouts.py --kubeconfig hub.kubeconfig --peer one    # of several that share the members

A member is a Secret of the hub with a kubeconfig.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from kplane.provider import (
    ApiError,
    CacheScope,
    Client,
    Cluster,
    ClusterConfig,
    Conflict,
    Manager,
    ObjectKey,
    ProviderError,
    Request,
    Resource,
    Sharded,
    Unreachable,
    controller,
    engage,
    enqueue_mapped,
    generation_changed,
    labels_changed,
    predicates,
    run,
)
from kplane.provider.objects import create_or_update, or_none, set_condition
from kplane.provider.providers.secrets import KUBECONFIG_LABEL, KubeconfigProvider

log = logging.getLogger("rollouts")

ROLLOUTS: Final = Resource("fleet.example.com/v1", "Rollout", "rollouts", namespaced=True)
COPY: Final = {"fleet.example.com/managed-by": "rollouts"}
"""Label of the copies. The caches keep no other ConfigMaps."""
FIELD_MANAGER: Final = "rollouts"

Object = dict[str, Any]


class Taken(ProviderError):
    """The member has a ConfigMap of this name that is no copy."""

    reason = "Taken"


class Rollouts:
    """Reconciles the copies in the members, and the summaries on the hub. `namespace` has the members' Secrets."""

    def __init__(self, hub: Cluster, *, namespace: str) -> None:
        self._hub = hub
        self._namespace = namespace

    async def reconcile_copy(self, request: Request, member: Cluster) -> None:
        """Bring one copy in line with its Rollout, and report it. Events of the hub and of the member lead here."""
        secret = await or_none(
            self._hub.cache.get("v1/Secret", member.name, namespace=self._namespace, metadata_only=True)
        )
        if secret is None:
            return  # It is about to leave the fleet, and keeps its copies.
        rollout = await or_none(self._hub.cache.get(ROLLOUTS, request))
        if rollout is None or not selects(rollout, secret):
            await remove(member, request)
            if rollout is not None:
                await self._report(rollout, member.name, None)
            return
        try:
            await write(member, request, rollout["spec"]["data"])
        except Conflict:
            raise  # The cache is behind: retry with what it will have.
        except (ApiError, Taken, Unreachable) as error:
            await self._report(rollout, member.name, {"value": False, "reason": error.reason, "message": str(error)})
            raise
        await self._report(rollout, member.name, {"value": True, "reason": "Applied"})

    async def reconcile_summary(self, request: Request) -> None:
        """Sum up the members' entries, and remove those of members that have left."""
        rollout = await or_none(self._hub.cache.get(ROLLOUTS, request))
        if rollout is None or "deletionTimestamp" in rollout["metadata"]:
            return
        secrets = await self._hub.cache.list("v1/Secret", metadata_only=True)
        status, generation = rollout.get("status", {}), rollout["metadata"]["generation"]
        entries = {entry["cluster"]: entry for entry in status.get("members", [])}
        for name in entries.keys() - {secret["metadata"]["name"] for secret in secrets}:
            await self._report(rollout, name, None)
        selected = sorted(secret["metadata"]["name"] for secret in secrets if selects(rollout, secret))
        behind = [name for name in selected if not is_applied(entries.get(name), generation=generation)]
        wanted = {
            "observedGeneration": generation,
            "applied": f"{len(selected) - len(behind)}/{len(selected)}",
            "conditions": copy.deepcopy(status.get("conditions", [])),
        }
        reason, message = ("Waiting", f"waiting for {', '.join(behind[:5])}") if behind else ("Applied", "")
        set_condition(wanted, "Ready", not behind, reason=reason, message=message, observed_generation=generation)
        if not wanted.items() <= status.items():
            await self._apply_status(rollout, wanted, field_manager=FIELD_MANAGER)

    async def _report(self, rollout: Object, member: str, applied: Object | None) -> None:
        """Write the member's entry; None removes it.

        Each entry has a field manager of its own, so processes that write different entries do not conflict.
        """
        members = rollout.get("status", {}).get("members", [])
        before = next((entry for entry in members if entry["cluster"] == member), None)
        entry = None
        if applied is not None:
            generation = rollout["metadata"]["generation"]
            entry = {**copy.deepcopy(before or {"cluster": member}), "observedGeneration": generation}
            set_condition(entry, "Applied", **applied, observed_generation=generation)
        if entry != before:
            status = {"members": [entry]} if entry else {}
            await self._apply_status(rollout, status, field_manager=f"{FIELD_MANAGER}/{member}")
            log.info("reported %s", applied["reason"] if applied else "nothing")

    async def _apply_status(self, rollout: Object, status: Object, *, field_manager: str) -> None:
        # With the uid, the server refuses a status for a later Rollout of the same name.
        metadata = {key: rollout["metadata"][key] for key in ("name", "namespace", "uid")}
        applied = {"metadata": metadata, "status": status}
        await or_none(
            self._hub.client.apply(ROLLOUTS, applied, subresource="status", field_manager=field_manager, force=True)
        )


async def write(member: Cluster, key: Request, data: Object) -> None:
    """Create or update the copy. Raises Taken for a ConfigMap that is no copy."""
    metadata = {"namespace": key.namespace, "name": key.name, "labels": COPY}

    def change(copied: Object) -> None:
        if not COPY.items() <= copied["metadata"].get("labels", {}).items():
            raise Taken(f"ConfigMap {key.key} of {member.name} is no copy: delete or rename it")
        if copied.get("data", {}) != data:
            copied["data"] = data

    described = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    outcome = await create_or_update(member.client, described, change, cache=member.cache)
    if outcome.result != "unchanged":
        log.info(outcome.result)


async def remove(member: Cluster, key: Request) -> None:
    """Delete the copy, if there is one."""
    copied = await or_none(member.cache.get("v1/ConfigMap", key))
    if copied is not None:
        await or_none(member.client.delete("v1/ConfigMap", key, uid=copied["metadata"]["uid"]))
        log.info("removed")


def selects(rollout: Object, secret: Object) -> bool:
    """Tell whether a Rollout is for the member of this Secret. One that is being deleted is for none."""
    wanted = rollout["spec"].get("clusterSelector", {}).get("matchLabels", {})
    labels = secret["metadata"].get("labels", {})
    return "deletionTimestamp" not in rollout["metadata"] and wanted.items() <= labels.items()


def is_applied(entry: Object | None, *, generation: int) -> bool:
    """Tell whether a member has the present data, by its entry."""
    return (
        entry is not None
        and entry.get("observedGeneration") == generation
        and all(each["status"] == "True" for each in entry["conditions"])
    )


def in_each_member(hub: Cluster, rollout: Object) -> Iterable[Request]:
    """Lead from a Rollout to its copy in each member, selected or not: the selector may have changed."""
    members = hub.cache.informer("v1/Secret", metadata_only=True).keys()
    metadata = rollout["metadata"]
    return [Request(member, metadata["namespace"], metadata["name"]) for _, member in members]


def in_this_member(hub: Cluster, secret: Object) -> Iterable[Request]:
    """Lead from the Secret of a member to each copy there: the labels may have changed."""
    return [Request(secret["metadata"]["name"], *key) for key in on_the_hub(hub, secret)]


def on_the_hub(hub: Cluster, _secret: Object) -> Iterable[ObjectKey]:
    """Lead from the Secret of a member to each Rollout."""
    keys = hub.cache.informer(ROLLOUTS).keys()
    return [ObjectKey(*key) for key in keys]


def add_controllers(manager: Manager, *, namespace: str) -> None:
    """Add both controllers: one works in the members, the other on the hub."""
    rollouts = Rollouts(manager.local, namespace=namespace)
    hub = engage(local=True, provider=False)
    copies = controller(manager).named("copies").for_("v1/ConfigMap")
    # The reports change only the status. With them, each member would lead to work in all others.
    each_member = enqueue_mapped(in_each_member, preserve_cluster=True)
    copies.watches(ROLLOUTS, each_member, hub, predicates(generation_changed()))
    this_member = enqueue_mapped(in_this_member, preserve_cluster=True)
    copies.watches_metadata("v1/Secret", this_member, hub, predicates(labels_changed()))
    copies.build(rollouts.reconcile_copy)
    summaries = controller(manager).named("summaries").for_(ROLLOUTS, hub)
    summaries.watches_metadata("v1/Secret", enqueue_mapped(on_the_hub), hub, predicates(labels_changed()))
    summaries.build(rollouts.reconcile_summary)


def read_command_line() -> argparse.Namespace:
    """Read which hub to work for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubeconfig", type=Path, required=True, help="kubeconfig of the hub")
    parser.add_argument("--namespace", default="default", help="has the members' Secrets; default: %(default)s")
    parser.add_argument("--peer", help="name of this process, if several share the members")
    return parser.parse_args()


async def main(stop: asyncio.Event) -> None:
    """Work until `stop` is set."""
    given = read_command_line()
    config = ClusterConfig.load(given.kubeconfig)
    scopes = {
        "v1/ConfigMap": CacheScope(label_selector=",".join(f"{key}={value}" for key, value in COPY.items())),
        "v1/Secret": CacheScope(namespaces=(given.namespace,), label_selector=f"{KUBECONFIG_LABEL}=true"),
    }
    async with Client(config) as client:
        provider = KubeconfigProvider(client, namespace=given.namespace)
        sharing = Sharded(client, namespace=given.namespace, identity=given.peer) if given.peer else None
        manager = Manager(config, provider, coordinator=sharing, cache_scopes=scopes, name=FIELD_MANAGER)
        add_controllers(manager, namespace=given.namespace)
        await manager.run(stop)


if __name__ == "__main__":
    run(main)
