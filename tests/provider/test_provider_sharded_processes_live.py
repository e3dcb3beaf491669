"""Three processes share clusters. The test kills a process and freezes another, and reads the audit log as proof.

All Leases and objects are in the same etcd, so their resourceVersions give the order of all writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from kplane.binaries.programs import Binaries
from kplane.embedded import components
from kplane.embedded.cluster import ManagementCluster
from kplane.provider import Client
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES
from kplane.provider.coordination.shards import Layout
from kplane.workloads import Component

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(400)]

REPLICA = Path(__file__).with_name("sharded_replica.py")
NAMESPACE = "shared"
CLUSTERS = [f"cluster-{number}" for number in range(12)]
LAYOUT = Layout("mcr-shard", "shard", 8)
POLICY = f"""
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: RequestResponse
  namespaces: [{NAMESPACE}]
  verbs: [create, update, patch, delete]
  resources:
  - group: ""
    resources: [configmaps]
  - group: coordination.k8s.io
    resources: [leases]
- level: None
"""


class Audited(ManagementCluster):
    """A management cluster whose API server has an audit log."""

    def __init__(self, directory: Path, *, binaries: Binaries) -> None:
        super().__init__(directory / "cluster", binaries=binaries, operators=False, manifests=False, fsync=False)
        self._policy = directory / "policy.yaml"
        self._policy.write_text(POLICY)
        self.log = directory / "audit.log"

    @override
    async def _run(self, component: Component) -> None:
        if component.name == components.API_SERVER:
            audit = (f"--audit-policy-file={self._policy}", f"--audit-log-path={self.log}")
            component = dataclasses.replace(component, args=(*component.args, *audit))
        await super()._run(component)


@dataclass(frozen=True)
class Change:
    """A write in the audit log of the API server."""

    version: int
    kind: str
    name: str
    who: str
    """The holder of the Lease since the write, or the writer of the object."""
    received: float
    done: float


def changes(log: Path) -> list[Change]:
    """Return all changes, in the order of etcd."""
    found = []
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if not 200 <= event["responseStatus"]["code"] < 300 or event["verb"] == "delete":
            continue
        after, kind = event["responseObject"], event["objectRef"]["resource"]
        who = after.get("data", {}).get("writer") if kind == "configmaps" else after["spec"].get("holderIdentity")
        times = [
            datetime.fromisoformat(event[each]).timestamp() for each in ("requestReceivedTimestamp", "stageTimestamp")
        ]
        found.append(
            Change(int(after["metadata"]["resourceVersion"]), kind, after["metadata"]["name"], who or "", *times)
        )
    return sorted(found, key=lambda change: change.version)


class Replica:
    """A process that is restarted when it ends by itself, as by a kubelet."""

    def __init__(self, identity: str, *, kubeconfig: Path, directory: Path) -> None:
        self.identity = identity
        self.ended: list[int] = []
        self._command = [sys.executable, str(REPLICA), str(kubeconfig), NAMESPACE, identity, str(len(CLUSTERS))]
        self._log = directory / f"{identity}.log"
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False

    async def run(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with self._log.open("ab") as log:
            while not self._stopping:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command, stdout=log, stderr=log, env=environment
                )
                self.ended.append(await self._process.wait())

    def send(self, number: signal.Signals) -> float:
        assert self._process is not None
        self._process.send_signal(number)
        return time.time()

    def stop(self) -> None:
        self._stopping = True
        with contextlib.suppress(ProcessLookupError):
            self.send(signal.SIGTERM)


@pytest.fixture
async def audited(binaries: Binaries, tmp_path: Path) -> AsyncIterator[Audited]:
    async with Audited(tmp_path, binaries=binaries) as cluster:
        await cluster.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        for name in CLUSTERS:
            await cluster.client.create(CONFIG_MAPS, {"metadata": {"name": name, "namespace": NAMESPACE}})
        yield cluster


@pytest.fixture
async def replicas(audited: Audited, tmp_path: Path) -> AsyncIterator[list[Replica]]:
    kubeconfig = audited.handle.admin_kubeconfig
    replicas = [Replica(f"mcm-{number}", kubeconfig=kubeconfig, directory=tmp_path) for number in range(3)]
    async with asyncio.TaskGroup() as tasks:
        for replica in replicas:
            tasks.create_task(replica.run())
        yield replicas
        for replica in replicas:
            replica.stop()


async def writers(client: Client) -> dict[str, str]:
    """Return which process wrote each cluster's object last."""
    found = (await client.list(CONFIG_MAPS, namespace=NAMESPACE)).items
    objects = {obj["metadata"]["name"]: obj.get("data", {}) for obj in found}
    return {name: objects[name].get("writer", "") for name in CLUSTERS}


def taken_over(log: Path, identity: str, *, since: float) -> dict[str, str]:
    """Return the next writer to each cluster of an ended process. Raises StopIteration if there is none."""
    last = {change.name: change.who for change in changes(log) if change.kind == "configmaps" and change.done < since}
    orphans = {name for name, who in last.items() if who.startswith(f"{identity}/")}
    return {
        name: next(
            each.who for each in changes(log) if each.name == name and each.received > since and each.who != last[name]
        )
        for name in orphans
    }


async def test_one_process_at_a_time_writes_to_a_cluster(
    audited: Audited, replicas: list[Replica], eventually: Callable[..., Awaitable[Any]]
) -> None:
    """Criterion 61: after kill -9, and after a freeze beyond the expiry of a fence, peers work on every cluster again.

    Tests in virtual time check the time until then.
    """
    everybody = {replica.identity for replica in replicas}

    async def shared_by(those: set[str], *, not_by: str = "") -> set[str]:
        """Wait until exactly these processes wrote last, and `not_by` wrote last to no cluster; return them."""

        def fits(found: dict[str, str]) -> bool:
            return {who.split("/")[0] for who in found.values()} == those and not_by not in found.values()

        return set((await eventually(lambda: writers(audited.client), fits)).values())

    processes = await shared_by(everybody)
    killed, frozen, _ = replicas
    ended = len(killed.ended)
    killed_at = killed.send(signal.SIGKILL)
    # The process restarts as by a kubelet, keeps its name, and waits until its former Leases expire.
    await eventually(lambda: len(killed.ended) > ended)
    await shared_by(everybody, not_by=next(who for who in processes if who.startswith(f"{killed.identity}/")))

    frozen_at = frozen.send(signal.SIGSTOP)
    # When other peers work on its clusters, its fences have expired.
    await shared_by(everybody - {frozen.identity})
    frozen.send(signal.SIGCONT)
    await shared_by(everybody)

    for replica in replicas:
        replica.stop()
    await eventually(lambda: all(replica.ended and replica.ended[-1] == 0 for replica in replicas))

    fences: dict[str, str] = {}
    tenures: defaultdict[str, list[Change]] = defaultdict(list)
    written = 0
    for change in changes(audited.log):
        if change.kind == "leases":
            fences[change.name] = change.who
        elif change.who:
            written += 1
            # In the order of etcd, the writer holds the fence at that moment: so no other process does.
            assert fences[LAYOUT.lease_name(LAYOUT.key_of(change.name))] == change.who.split("/")[0], change
            before = tenures[change.name][-1] if tenures[change.name] else None
            if before is not None and before.who != change.who:
                assert before.done <= change.received, (before, change)
            tenures[change.name].append(change)
    assert written > 200
    assert killed.ended[ended] == -signal.SIGKILL
    assert taken_over(audited.log, killed.identity, since=killed_at)
    after_freeze = taken_over(audited.log, frozen.identity, since=frozen_at)
    assert after_freeze
    assert frozen.identity not in {who.split("/")[0] for who in after_freeze.values()}
