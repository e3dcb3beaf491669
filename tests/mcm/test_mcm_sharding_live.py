"""Several mcm share a fleet. At no time do the instances of two mcm write to the same control plane."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kplane.embedded.credentials import MCM_USER
from kplane.mcm.placement.sharding import SHARDS
from kplane.provider import ClusterConfig
from kplane.provider.client.resources import ROLE_BINDINGS, ROLES
from kplane.provider.coordination.rendezvous import slot_of

from .writers import Span, kept_busy, signing_program, spans

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.xdist_group("mcm_sharding_live"),
    pytest.mark.timeout(420),
]

Eventually = Callable[..., Any]

_SECONDS = 10
"""Duration of a shard Lease."""
_STOPPED_SECONDS = 60.0
_PATIENCE = 90.0
"""Timeout of each wait, long enough for a busy machine."""


class Replicas:
    """Replicas of mcm by name, with Leases in the namespace of a fleet, and the instances of each replica."""

    def __init__(self, make: Callable[..., Any], *, namespace: str, eventually: Eventually) -> None:
        self._make = make
        self.namespace = namespace
        self._eventually = eventually
        self.running: dict[str, Any] = {}
        self.apart = False
        """Whether each registration has a separate instance Lease, so that several can have the same API server."""

    def start(self, name: str, *, kubeconfig: Path | None = None) -> Any:
        """Start a replica. `kubeconfig` replaces the default kubeconfig of the management cluster."""
        mcm = self.running[name] = self._make(name, kubeconfig, apart=self.apart)
        mcm.start(
            "--cluster-sharding",
            f"--cluster-lease-namespace={self.namespace}",
            f"--cluster-shard-id={name}",
            f"--cluster-lease-seconds={_SECONDS}",
        )
        return mcm

    def forget(self, name: str) -> Any:
        """Stop querying a replica that is stopped or has ended."""
        return self.running.pop(name)

    async def instances(self) -> dict[str, list[tuple[str, int]]]:
        """Return, by cluster, the replicas with a ready instance and the pid of that instance."""
        instances: dict[str, list[tuple[str, int]]] = {}
        for name, mcm in self.running.items():
            for cluster, summary in (await asyncio.to_thread(mcm.clusters)).items():
                instances.setdefault(cluster, []).extend(
                    [(name, summary["pid"])] if summary["state"] == "Ready" else []
                )
        return instances

    async def settled(self, *clusters: str, accept: Callable[[dict[str, tuple[str, int]]], Any] = bool) -> Any:
        """Wait until each cluster has exactly one ready instance. Returns its replica and pid by cluster."""

        async def told() -> dict[str, tuple[str, int]]:
            instances = await self.instances()
            return {name: instances[name][0] for name in clusters if len(instances.get(name, ())) == 1}

        return await self._eventually(
            told, lambda found: len(found) == len(clusters) and accept(found), timeout=_PATIENCE
        )

    async def shares(self, *wanted: int) -> None:
        """Wait until the replicas have these numbers of shards, in any order."""
        await self._eventually(
            lambda: asyncio.gather(*(self.metric(name, "multicluster_fences", "owned") for name in self.running)),
            lambda found: sorted(found) == sorted(wanted),
            timeout=_PATIENCE,
        )

    async def metric(self, name: str, metric: str, label: str) -> float:
        text = (await asyncio.to_thread(self.running[name].get, "/metrics"))[1]
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        [value] = [entry.value for entry in samples if entry.name == metric and label in entry.labels.values()]
        return float(value)


@pytest.fixture
async def replicas(
    mcm_of: Any, api_server: Any, fleet: Any, binaries: Any, tmp_path: Path, eventually: Eventually
) -> Replicas:
    group = "rbac.authorization.k8s.io"
    metadata = {"name": "leases", "namespace": fleet.namespace}
    rules = [
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
        }
    ]
    await fleet.client.create(ROLES, {"metadata": metadata, "rules": rules})
    await fleet.client.create(
        ROLE_BINDINGS,
        {
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "leases"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": MCM_USER}],
        },
    )

    def make(name: str, kubeconfig: Path | None, *, apart: bool) -> Any:
        directory = tmp_path / name
        signing_program(directory, name=f"{fleet.namespace}.{name}", binaries=binaries)
        real = binaries.path("kube-controller-manager")
        return mcm_of(
            kubeconfig or api_server.mcm_kubeconfig,
            programs=(directory, real.parent),
            apart=apart,
        )

    return Replicas(make, namespace=fleet.namespace, eventually=eventually)


def reapers(mcm: Any) -> list[int]:
    """Return the pids of the watchdog that kills the instances of an mcm before their Leases run out."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"reaper.py" in (line := path.read_bytes()) and str(mcm.state).encode() in line:
                pids.append(int(path.parent.name))
    return pids


class Story:
    """The instance of a registration over time, and its writers according to the audit logs of API servers."""

    def __init__(self, name: str, *, audits: list[Path], replicas: Replicas, eventually: Eventually) -> None:
        self.name = name
        self.writers: list[str] = []
        """Replica and pid of each writer, in the order of their first writes."""
        self._audits = audits
        self._replicas = replicas
        self._eventually = eventually

    def spans(self) -> list[list[Span]]:
        """Return the spans of writes for each control plane."""
        return [spans(audit, prefix=self._replicas.namespace) for audit in self._audits]

    async def goes_on(self, *, anew: bool = True) -> str:
        """Wait until the ready instance has written, and return its replica. With `anew`, wait for a new instance."""

        def accept(found: dict[str, tuple[str, int]]) -> bool:
            return not anew or self._writer(found) not in self.writers

        writer = self._writer(await self._replicas.settled(self.name, accept=accept))

        def seen() -> bool:
            return any(span.writer == writer for writes in self.spans() for span in writes)

        await self._eventually(lambda: asyncio.to_thread(seen), timeout=_PATIENCE)
        if writer not in self.writers:
            self.writers.append(writer)
        return writer.partition(".")[0]

    async def joined_by(self, name: str) -> str:
        """Start another replica. Returns the replica of the instance after the shards are shared out."""
        self._replicas.start(name)
        await self._replicas.shares(SHARDS // 2, SHARDS // 2)
        return await self.goes_on(anew=False)

    def _writer(self, found: dict[str, tuple[str, int]]) -> str:
        replica, pid = found[self.name]
        return f"{replica}.{pid}"


@pytest.mark.timeout(600)
async def test_two_instances_never_write_to_one_control_plane(
    fleet: Any, tenants: Any, replicas: Replicas, eventually: Eventually
) -> None:
    """The audit logs of the control planes show it through moves, an update, a stopped and a killed replica."""
    first, second = tenants["one"], tenants["two"]
    name = await fleet.register("story", first.controllers_secret(), server=first.server)
    story = Story(name, audits=[first.audit, second.audit], replicas=replicas, eventually=eventually)
    async with kept_busy(first.config, second.config, name=fleet.namespace):
        replicas.start("a")
        assert await story.goes_on() == "a"
        # The registration gets another endpoint, then another control plane.
        await fleet.resolve("story", server=first.server.replace("127.0.0.1", "localhost"), secret="story")
        assert await story.goes_on() == "a"
        await fleet.put_secret("second", second.controllers_secret())
        await fleet.resolve("story", server=second.server, secret="second")
        assert await story.goes_on() == "a"

        # Rolling update: the new replica runs before the old replica ends.
        await story.joined_by("b")
        old_mcm = replicas.forget("a")
        assert await asyncio.to_thread(old_mcm.end) == 0
        assert await story.goes_on(anew=False) == "b"

        # A replica is stopped for longer than its Leases last, while its instance goes on.
        owner = await story.joined_by("c")
        stopped_mcm = replicas.forget(owner)
        stopped_mcm.process.send_signal(signal.SIGSTOP)
        stopped_at = time.monotonic()
        [follower] = replicas.running
        assert await story.goes_on() == follower
        assert not stopped_mcm.instances()
        await eventually(lambda: time.monotonic() - stopped_at > _STOPPED_SECONDS, timeout=2 * _STOPPED_SECONDS)
        stopped_mcm.process.send_signal(signal.SIGCONT)
        # The replica cannot know of writes in its absence, so it ends in order to be restarted.
        assert await asyncio.to_thread(stopped_mcm.process.wait, _PATIENCE) == 1
        await eventually(lambda: not stopped_mcm.instances() and not reapers(stopped_mcm))

        # A replica is killed. Its instance dies with it, and the next replica reports the end of that instance.
        owner = await story.joined_by("d")
        killed_mcm = replicas.forget(owner)
        assert await asyncio.to_thread(killed_mcm.end, signal.SIGKILL) == -signal.SIGKILL
        await eventually(lambda: not killed_mcm.instances() and not reapers(killed_mcm))
        await fleet.withdraw("story")
        await eventually(lambda: fleet.told("story"), lambda found: found == ("False", "Ended", ""), timeout=_PATIENCE)
        await fleet.resolve("story", server=second.server, secret="second")
        [follower] = replicas.running
        assert await story.goes_on() == follower

    for writes in story.spans():
        for before, after in itertools.pairwise(writes):
            assert before.ended < after.began, writes
        assert all(span.writer in story.writers for span in writes), "not one that nobody knows of"


async def registered(fleet: Any, tenant: Any, *, count: int) -> list[str]:
    """Register a tenant `count` times, each time in another shard. Returns the names of the registrations."""
    stems: dict[int, str] = {}
    for number in range(1000):
        stems.setdefault(slot_of(fleet.name(f"r{number}"), SHARDS), f"r{number}")
    return [
        await fleet.register(stem, tenant.controllers_secret(), server=tenant.server, profile="Core")
        for stem in sorted(stems.values())[:count]
    ]


async def test_isolated_replica_ends_its_instances_before_others_start(
    fleet: Any, tenants: Any, api_server: Any, replicas: Replicas, gate_to: Any, tmp_path: Path, eventually: Eventually
) -> None:
    """The network drops all packets. When it is back, both replicas share again, and neither was restarted."""
    server = ClusterConfig.load(api_server.mcm_kubeconfig).server
    replicas.apart = True
    names = await registered(fleet, tenants["one"], count=5)
    async with gate_to(server) as gate:
        kubeconfig = tmp_path / "behind-the-gate"
        kubeconfig.write_text(api_server.mcm_kubeconfig.read_text().replace(server, gate.url))
        cut_mcm = replicas.start("cut", kubeconfig=kubeconfig)
        await replicas.shares(SHARDS)
        free_mcm = replicas.start("free")
        await replicas.shares(SHARDS // 2, SHARDS // 2)
        moving_pids = {name: pid for name, (owner, pid) in (await replicas.settled(*names)).items() if owner == "cut"}
        overlaps: list[str] = []

        async def moved() -> bool:
            free_pids = {name: summary["pid"] for name, summary in (await asyncio.to_thread(free_mcm.clusters)).items()}
            live_pids = cut_mcm.instances()
            overlaps.extend(name for name, pid in moving_pids.items() if free_pids.get(name) and pid in live_pids)
            return all(free_pids.get(name) for name in moving_pids)

        gate.flowing.clear()
        replicas.forget("cut")
        await eventually(moved, timeout=_PATIENCE)
        assert overlaps == []
        gate.flowing.set()
        replicas.running["cut"] = cut_mcm
        await replicas.shares(SHARDS // 2, SHARDS // 2)
        await replicas.settled(*names)
        assert cut_mcm.process.poll() is None


async def test_instance_keeps_its_process_unless_its_shard_moves(
    fleet: Any, tenants: Any, replicas: Replicas, eventually: Eventually
) -> None:
    """From 1 to 3 to 2 replicas, an instance keeps its process if it keeps its replica."""
    replicas.apart = True
    names = await registered(fleet, tenants["one"], count=5)
    lease_events = "multicluster_lease_events_total"
    replicas.start("a")
    await replicas.shares(SHARDS)
    before = await replicas.settled(*names)
    # A killed watchdog is replaced, and no instance restarts.
    [reaper] = reapers(replicas.running["a"])
    os.kill(reaper, signal.SIGKILL)
    await eventually(lambda: [pid for pid in reapers(replicas.running["a"]) if pid != reaper])
    assert await replicas.settled(*names) == before

    async def stay_but(moved: int, *, acquired: dict[str, int]) -> None:
        """Wait for the instances, and assert by Leases and processes that at most `moved` of them moved."""
        nonlocal before
        after = await replicas.settled(*names)
        for name in names:
            assert (after[name] == before[name]) == (after[name][0] == before[name][0]), (name, before, after)
        assert sum(after[name] != before[name] for name in names) <= moved
        assert {name: await replicas.metric(name, lease_events, "acquired") for name in acquired} == acquired
        before = after

    replicas.start("b")
    await replicas.shares(8, 8)
    await stay_but(8, acquired={"a": 16, "b": 8})
    replicas.start("c")
    await replicas.shares(5, 5, 6)
    await stay_but(6, acquired={"a": 16, "b": 8})
    moved = await replicas.metric("c", lease_events, "acquired")
    ended_mcm = replicas.forget("c")
    assert await asyncio.to_thread(ended_mcm.end) == 0
    await replicas.shares(8, 8)
    after = await replicas.settled(*names)
    for name in names:
        assert after[name] == before[name] or before[name][0] == "c", (name, before, after)
    assert sum([await replicas.metric(name, lease_events, "acquired") for name in ("a", "b")]) == 24 + moved
