"""Two mcm of a StatefulSet: each has the keys of its own shards, and keeps them through an outage and an update."""

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
        """Wait for an instance of each registration, and give its mcm and its process."""

        async def found() -> dict[str, tuple[str, int]]:
            told = {}
            for name, mcm in self.running.items():
                for cluster, each in (await asyncio.to_thread(mcm.clusters)).items():
                    if each["state"] == "Ready":
                        told[cluster] = (name, each["pid"])
            return told

        result: dict[str, tuple[str, int]] = await self._eventually(
            found, lambda told: len(told) == _COUNT, timeout=_PATIENCE
        )
        return result

    async def holders(self) -> dict[str, str]:
        leases = (await self._fleet.client.list(LEASES, namespace=self._fleet.namespace)).items
        names = {each["metadata"]["name"]: each["spec"].get("holderIdentity") or "" for each in leases}
        return {name: holder for name, holder in names.items() if name.startswith("mcm-shard-")}


def has_in_memory(pid: int, text: bytes) -> bool:
    """Whether a process has this text anywhere."""
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
        behind = tmp_path / "behind-the-gate"
        behind.write_text(api_server.mcm_kubeconfig.read_text().replace(server, gate.url))
        pods = Pods(fleet, make=lambda: mcm_of(behind, apart=True), eventually=eventually)
        await pods.open(replicas=2)
        for name in ("mcm-0", "mcm-1"):
            pods.start(name)
        # A new installation does not wait for Leases that nobody had: they would take 90 s.
        holders = await eventually(
            pods.holders,
            lambda held: sorted(list(held.values()).count(name) for name in pods.running) == [SHARDS // 2] * 2,
            timeout=_PATIENCE,
        )
        # The keys come after that: a replica that starts long before the other may read all keys that are there.
        for stem in [stems[shard] for shard in sorted(stems)][: _COUNT * 2 : 2]:
            markers[fleet.name(stem)] = marker = os.urandom(24).hex().encode()
            await fleet.register(
                stem, tenant.controllers_secret() | {"marker": marker}, server=tenant.server, profile="Core"
            )
        owners = await pods.ready()

        # Each has one watch for each of its own Secrets, and no key of the other's.
        assert {owner for owner, _ in owners.values()} == set(pods.running)
        await eventually(watches, lambda count: count - before == _COUNT)
        for cluster, (owner, _) in owners.items():
            for name, mcm in pods.running.items():
                there = await asyncio.to_thread(has_in_memory, mcm.process.pid, markers[cluster])
                assert there == (name == owner), (cluster, name)

        # The management API is away for a minute.
        gate.flowing.clear()
        began = time.monotonic()
        await eventually(lambda: time.monotonic() - began > _OUTAGE_SECONDS, timeout=2 * _OUTAGE_SECONDS)
        gate.flowing.set()
        assert await pods.ready() == owners
        renewed = {each["metadata"]["name"]: each["spec"]["renewTime"] for each in await _leases(fleet)}

        async def is_renewed() -> bool:
            return all(each["spec"]["renewTime"] > renewed[each["metadata"]["name"]] for each in await _leases(fleet))

        await eventually(is_renewed, timeout=_PATIENCE)
        assert await pods.ready() == owners
        assert await pods.holders() == holders

        # A rolling update, from the last one on.
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
    found = (await fleet.client.list(LEASES, namespace=fleet.namespace)).items
    return [each for each in found if each["metadata"]["name"].startswith("mcm-shard-")]
