"""Several mcm share a fleet: no two of them have an instance at work on one control plane, whatever happens to them."""

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
"""That a Lease lasts."""
_STOPPED_SECONDS = 60.0
_PATIENCE = 90.0
"""On a machine that does other things too."""


class Replicas:
    """mcm under several names, with Leases in the namespace of a fleet, and what each of them has running."""

    def __init__(self, make: Callable[..., Any], *, namespace: str, eventually: Eventually) -> None:
        self._make = make
        self.namespace = namespace
        self._eventually = eventually
        self.running: dict[str, Any] = {}
        self.apart = False
        """Whether each registration has a Lease of its own, where several are of one API server."""

    def start(self, name: str, *, kubeconfig: Path | None = None) -> Any:
        """With a kubeconfig of the management cluster, where it takes another way there than others."""
        mcm = self.running[name] = self._make(name, kubeconfig, apart=self.apart)
        mcm.start(
            "--cluster-sharding",
            f"--cluster-lease-namespace={self.namespace}",
            f"--cluster-shard-id={name}",
            f"--cluster-lease-seconds={_SECONDS}",
        )
        return mcm

    def forget(self, name: str) -> Any:
        """Ask this one nothing any more: it is stopped, or has ended."""
        return self.running.pop(name)

    async def instances(self) -> dict[str, list[tuple[str, int]]]:
        """By cluster, the names of the replicas with an instance that is ready, and its process."""
        found: dict[str, list[tuple[str, int]]] = {}
        for name, mcm in self.running.items():
            for cluster, told in (await asyncio.to_thread(mcm.clusters)).items():
                found.setdefault(cluster, []).extend([(name, told["pid"])] if told["state"] == "Ready" else [])
        return found

    async def settled(self, *clusters: str, accept: Callable[[dict[str, tuple[str, int]]], Any] = bool) -> Any:
        """Wait until each cluster has one instance that is ready, and give them by cluster."""

        async def told() -> dict[str, tuple[str, int]]:
            found = await self.instances()
            return {name: found[name][0] for name in clusters if len(found.get(name, ())) == 1}

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
        [value] = [each.value for each in samples if each.name == metric and label in each.labels.values()]
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
    """Numbers of the processes that would end the instances of an mcm in time."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"reaper.py" in (line := path.read_bytes()) and str(mcm.state).encode() in line:
                found.append(int(path.parent.name))
    return found


class Story:
    """What becomes of the instance of one registration, and what API servers know of its writers."""

    def __init__(self, name: str, *, audits: list[Path], replicas: Replicas, eventually: Eventually) -> None:
        self.name = name
        self.writers: list[str] = []
        """In their order: names of replicas, each with the number of the process."""
        self._audits = audits
        self._replicas = replicas
        self._eventually = eventually

    def spans(self) -> list[list[Span]]:
        """Of each control plane."""
        return [spans(audit, prefix=self._replicas.namespace) for audit in self._audits]

    async def goes_on(self, *, anew: bool = True) -> str:
        """Wait until an instance has written, another one than before where it begins anew; name its replica."""

        def accept(found: dict[str, tuple[str, int]]) -> bool:
            return not anew or self._writer(found) not in self.writers

        writer = self._writer(await self._replicas.settled(self.name, accept=accept))

        def seen() -> bool:
            return any(span.writer == writer for found in self.spans() for span in found)

        await self._eventually(lambda: asyncio.to_thread(seen), timeout=_PATIENCE)
        if writer not in self.writers:
            self.writers.append(writer)
        return writer.partition(".")[0]

    async def joined_by(self, name: str) -> str:
        """Start one more replica, and name the one that has the instance when all is shared out."""
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
    """The audit logs of the control planes tell, through all that a fleet may meet."""
    first, second = tenants["one"], tenants["two"]
    name = await fleet.register("story", first.controllers_secret(), server=first.server)
    story = Story(name, audits=[first.audit, second.audit], replicas=replicas, eventually=eventually)
    async with kept_busy(first.config, second.config, name=fleet.namespace):
        replicas.start("a")
        assert await story.goes_on() == "a"
        # Another endpoint, and another control plane.
        await fleet.resolve("story", server=first.server.replace("127.0.0.1", "localhost"), secret="story")
        assert await story.goes_on() == "a"
        await fleet.put_secret("second", second.controllers_secret())
        await fleet.resolve("story", server=second.server, secret="second")
        assert await story.goes_on() == "a"

        # A rolling update: the next one is there before the last one goes.
        await story.joined_by("b")
        former = replicas.forget("a")
        assert await asyncio.to_thread(former.end) == 0
        assert await story.goes_on(anew=False) == "b"

        # One that is stopped for longer than its Leases last, while its instance goes on.
        owner = await story.joined_by("c")
        stopped = replicas.forget(owner)
        stopped.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        [follower] = replicas.running
        assert await story.goes_on() == follower
        assert not stopped.instances()
        await eventually(lambda: time.monotonic() - began > _STOPPED_SECONDS, timeout=2 * _STOPPED_SECONDS)
        stopped.process.send_signal(signal.SIGCONT)
        # It cannot know what was done in its absence: it ends, to be started again.
        assert await asyncio.to_thread(stopped.process.wait, _PATIENCE) == 1
        await eventually(lambda: not stopped.instances() and not reapers(stopped))

        # One that is killed without a word: its instance goes with it, and who follows it says so in its place.
        owner = await story.joined_by("d")
        killed = replicas.forget(owner)
        assert await asyncio.to_thread(killed.end, signal.SIGKILL) == -signal.SIGKILL
        await eventually(lambda: not killed.instances() and not reapers(killed))
        await fleet.withdraw("story")
        await eventually(lambda: fleet.told("story"), lambda found: found == ("False", "Ended", ""), timeout=_PATIENCE)
        await fleet.resolve("story", server=second.server, secret="second")
        [follower] = replicas.running
        assert await story.goes_on() == follower

    for found in story.spans():
        for before, after in itertools.pairwise(found):
            assert before.ended < after.began, found
        assert all(span.writer in story.writers for span in found), "not one that nobody knows of"


async def registered(fleet: Any, tenant: Any, *, count: int) -> list[str]:
    """Names of registrations that are in so many shards."""
    stems: dict[int, str] = {}
    for number in range(1000):
        stems.setdefault(slot_of(fleet.name(f"r{number}"), SHARDS), f"r{number}")
    return [
        await fleet.register(stem, tenant.controllers_secret(), server=tenant.server, profile="Core")
        for stem in sorted(stems.values())[:count]
    ]


async def test_who_cannot_reach_the_management_cluster_has_ended_before_others_begin(
    fleet: Any, tenants: Any, api_server: Any, replicas: Replicas, gate_to: Any, tmp_path: Path, eventually: Eventually
) -> None:
    """A network that swallows everything; where it is back, both share again, and nobody was started again."""
    server = ClusterConfig.load(api_server.mcm_kubeconfig).server
    replicas.apart = True
    names = await registered(fleet, tenants["one"], count=5)
    async with gate_to(server) as gate:
        behind = tmp_path / "behind-the-gate"
        behind.write_text(api_server.mcm_kubeconfig.read_text().replace(server, gate.url))
        cut = replicas.start("cut", kubeconfig=behind)
        await replicas.shares(SHARDS)
        free = replicas.start("free")
        await replicas.shares(SHARDS // 2, SHARDS // 2)
        moving = {name: pid for name, (owner, pid) in (await replicas.settled(*names)).items() if owner == "cut"}
        together: list[str] = []

        async def moved() -> bool:
            theirs = {name: told["pid"] for name, told in (await asyncio.to_thread(free.clusters)).items()}
            alive = cut.instances()
            together.extend(name for name, pid in moving.items() if theirs.get(name) and pid in alive)
            return all(theirs.get(name) for name in moving)

        gate.flowing.clear()
        replicas.forget("cut")
        await eventually(moved, timeout=_PATIENCE)
        assert together == []
        gate.flowing.set()
        replicas.running["cut"] = cut
        await replicas.shares(SHARDS // 2, SHARDS // 2)
        await replicas.settled(*names)
        assert cut.process.poll() is None


async def test_only_what_must_moves_when_replicas_come_and_go(
    fleet: Any, tenants: Any, replicas: Replicas, eventually: Eventually
) -> None:
    """1 to 3 to 2: instances whose mcm is the same have the same process."""
    replicas.apart = True
    names = await registered(fleet, tenants["one"], count=5)
    taken = "multicluster_lease_events_total"
    replicas.start("a")
    await replicas.shares(SHARDS)
    before = await replicas.settled(*names)
    # Whoever would end instances in time is replaced, and none of them notices.
    [reaper] = reapers(replicas.running["a"])
    os.kill(reaper, signal.SIGKILL)
    await eventually(lambda: [pid for pid in reapers(replicas.running["a"]) if pid != reaper])
    assert await replicas.settled(*names) == before

    async def stay_but(moved: int, *, acquired: dict[str, int]) -> None:
        """Wait for instances, and see that no more moved than so many shards, by Leases and by processes."""
        nonlocal before
        after = await replicas.settled(*names)
        for name in names:
            assert (after[name] == before[name]) == (after[name][0] == before[name][0]), (name, before, after)
        assert sum(after[name] != before[name] for name in names) <= moved
        assert {name: await replicas.metric(name, taken, "acquired") for name in acquired} == acquired
        before = after

    replicas.start("b")
    await replicas.shares(8, 8)
    await stay_but(8, acquired={"a": 16, "b": 8})
    replicas.start("c")
    await replicas.shares(5, 5, 6)
    await stay_but(6, acquired={"a": 16, "b": 8})
    moved = await replicas.metric("c", taken, "acquired")
    left = replicas.forget("c")
    assert await asyncio.to_thread(left.end) == 0
    await replicas.shares(8, 8)
    after = await replicas.settled(*names)
    for name in names:
        assert after[name] == before[name] or before[name][0] == "c", (name, before, after)
    assert sum([await replicas.metric(name, taken, "acquired") for name in ("a", "b")]) == 24 + moved
