"""Two mcm of a StatefulSet each have only the keys of their own shards, and keep them over an outage and an update."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.embedded.credentials import MCM_USER
from kplane.mcm.placement.sharding import SHARDS
from kplane.provider import ClusterConfig
from kplane.provider.client.resources import LEASES, ROLE_BINDINGS, ROLES, STATEFUL_SETS
from kplane.provider.coordination.rendezvous import slot_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.xdist_group("mcm_sharding_live"),
    pytest.mark.timeout(420),
]

_OUTAGE_SECONDS = 60.0
_COUNT = 6
_PATIENCE = 90.0
_SECRET_WATCHES = re.compile(
    r'^apiserver_longrunning_requests\{[^}]*resource="secrets"[^}]*verb="WATCH"[^}]*\} (\d+)', re.MULTILINE
)
_GROUP = "rbac.authorization.k8s.io"


class Pods:
    """mcm of a StatefulSet `mcm`, without its controller."""

    def __init__(self, fleet: Any, *, make: Callable[[], Any], eventually: Callable[..., Any]) -> None:
        self._fleet = fleet
        self._make = make
        self._eventually = eventually
        self.running: dict[str, Any] = {}

    async def open(self, replicas: int) -> None:
        client, metadata = self._fleet.client, {"name": "mcm", "namespace": self._fleet.namespace}
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
        spec = {"replicas": replicas, "serviceName": "mcm", "selector": {"matchLabels": {"a": "b"}}}
        await client.create(STATEFUL_SETS, {"metadata": metadata, "spec": {**spec, "template": template}})
        verbs = ["get", "list", "watch", "create", "update", "patch", "delete"]
        rules = [
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs},
            {"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": ["get"]},
        ]
        await client.create(ROLES, {"metadata": metadata, "rules": rules})
        subjects = [{"apiGroup": _GROUP, "kind": "User", "name": MCM_USER}]
        role = {"apiGroup": _GROUP, "kind": "Role", "name": "mcm"}
        await client.create(ROLE_BINDINGS, {"metadata": metadata, "roleRef": role, "subjects": subjects})

    def start(self, name: str) -> None:
        mcm = self.running.get(name) or self._make()
        mcm.start(
            "--cluster-sharding", f"--cluster-lease-namespace={self._fleet.namespace}", f"--cluster-shard-id={name}"
        )
        self.running[name] = mcm

    async def ready(self) -> dict[str, tuple[str, int]]:
        """Wait for a ready instance of each registration. Returns its mcm and its pid by cluster."""

        async def found() -> dict[str, tuple[str, int]]:
            instances = {}
            for name, mcm in self.running.items():
                for cluster, summary in (await asyncio.to_thread(mcm.clusters)).items():
                    if summary["state"] == "Ready":
                        instances[cluster] = (name, summary["pid"])
            return instances

        result: dict[str, tuple[str, int]] = await self._eventually(
            found, lambda told: len(told) == _COUNT, timeout=_PATIENCE
        )
        return result

    async def holders(self) -> dict[str, str]:
        leases = (await self._fleet.client.list(LEASES, namespace=self._fleet.namespace)).items
        names = {lease["metadata"]["name"]: lease["spec"].get("holderIdentity") or "" for lease in leases}
        return {name: holder for name, holder in names.items() if name.startswith("mcm-shard-")}


def has_in_memory(pid: int, text: bytes) -> bool:
    """Return whether the memory of a process contains a text."""
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            if "rw" in rights and "[v" not in line:
                begin, end = (int(number, 16) for number in span.split("-"))
                try:
                    memory.seek(begin)
                    if text in memory.read(end - begin):
                        return True
                except OSError:
                    continue
    return False


async def test_replicas_have_their_own_keys_and_keep_their_shards(
    fleet: Any,
    tenants: Any,
    api_server: Any,
    mcm_of: Callable[..., Any],
    gate_to: Any,
    tmp_path: Path,
    eventually: Callable[..., Any],
) -> None:
    tenant, markers = tenants["one"], {}
    stems = {slot_of(fleet.name(f"r{number}"), SHARDS): f"r{number}" for number in range(200)}

    async def watches() -> int:
        text = await api_server.kubectl.run("get", "--raw", "/metrics")
        return sum(int(count) for count in _SECRET_WATCHES.findall(text))

    before = await watches()
    server = ClusterConfig.load(api_server.mcm_kubeconfig).server
    async with gate_to(server) as gate:
        kubeconfig = tmp_path / "behind-the-gate"
        kubeconfig.write_text(api_server.mcm_kubeconfig.read_text().replace(server, gate.url))
        pods = Pods(fleet, make=lambda: mcm_of(kubeconfig, apart=True), eventually=eventually)
        await pods.open(replicas=2)
        for name in ("mcm-0", "mcm-1"):
            pods.start(name)
        # A new installation does not wait for Leases without a former holder, which would take 90 s.
        holders = await eventually(
            pods.holders,
            lambda held: sorted(list(held.values()).count(name) for name in pods.running) == [SHARDS // 2] * 2,
            timeout=_PATIENCE,
        )
        # The keys are written afterwards: a replica that starts long before the other may read all existing keys.
        for stem in [stems[shard] for shard in sorted(stems)][: _COUNT * 2 : 2]:
            markers[fleet.name(stem)] = marker = os.urandom(24).hex().encode()
            await fleet.register(
                stem, tenant.controllers_secret() | {"marker": marker}, server=tenant.server, profile="Core"
            )
        owners = await pods.ready()

        # Each replica watches each of its own Secrets once, and has no key of the other replica.
        assert {owner for owner, _ in owners.values()} == set(pods.running)
        await eventually(watches, lambda count: count - before == _COUNT)
        for cluster, (owner, _) in owners.items():
            for name, mcm in pods.running.items():
                has_key = await asyncio.to_thread(has_in_memory, mcm.process.pid, markers[cluster])
                assert has_key == (name == owner), (cluster, name)

        # The management API is away for a minute.
        gate.flowing.clear()
        outage_began_at = time.monotonic()
        await eventually(lambda: time.monotonic() - outage_began_at > _OUTAGE_SECONDS, timeout=2 * _OUTAGE_SECONDS)
        gate.flowing.set()
        assert await pods.ready() == owners
        renew_times = {lease["metadata"]["name"]: lease["spec"]["renewTime"] for lease in await _leases(fleet)}

        async def is_renewed() -> bool:
            return all(
                lease["spec"]["renewTime"] > renew_times[lease["metadata"]["name"]] for lease in await _leases(fleet)
            )

        await eventually(is_renewed, timeout=_PATIENCE)
        assert await pods.ready() == owners
        assert await pods.holders() == holders

        # Rolling update, from the last replica on.
        for name in ("mcm-1", "mcm-0"):
            assert await asyncio.to_thread(pods.running[name].end) == 0
            pods.start(name)
            await eventually(pods.holders, lambda found: found == holders, timeout=_PATIENCE)
        after = await pods.ready()
        assert {cluster: owner for cluster, (owner, _) in after.items()} == {
            cluster: owner for cluster, (owner, _) in owners.items()
        }
        await eventually(watches, lambda count: count - before == _COUNT)


async def _leases(fleet: Any) -> list[dict[str, Any]]:
    leases = (await fleet.client.list(LEASES, namespace=fleet.namespace)).items
    return [lease for lease in leases if lease["metadata"]["name"].startswith("mcm-shard-")]
