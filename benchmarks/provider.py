"""Measures a controller on a fleet of clusters: `python -m benchmarks.provider --clusters 100 500`.

Starts a kube-apiserver on a plain etcd. The API server stands for N clusters, each with its own connections, client and
cache. The controller for ConfigMaps only counts reconciles. `--kinds 3` adds controllers for Secrets and
ServiceAccounts. For each N, a new process of `benchmarks.provider_worker` runs the controllers. With `--processes`,
several processes divide the clusters by Leases. A lost event ends the run with an error. Prints JSON:

- `engaged`: seconds from the first cluster to the reconcile of the last object, and memory before and after;
- `burst`: reconciles per second for objects of each kind that are created at once and seen in each cluster;
- `churn`: milliseconds from the create request of a ConfigMap to its reconcile, one by one;
- `quiet`, with `--quiet-seconds`: processor time of workers and API server, and the probes of its `/version`. Nothing
  changes meanwhile. `without_probes` is the same with other workers, whose clients probe no silent server.

All programs share this machine, so the result includes their load. More processes leave less processor time to the API
server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import platform
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.cost import cpu_seconds
from benchmarks.provider_processes import NAMESPACE, Worker, fleet_server, program_of, reconciled, shared_out, started
from benchmarks.provider_worker import KINDS
from kplane.provider import Client
from kplane.provider.client.resources import CONFIG_MAPS, SECRETS, Resource

_AT_ONCE: Final = 16
_SERVER_CPU: Final = re.compile(r"^process_cpu_seconds_total (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Target:
    """Holds the options of a measurement."""

    objects: int
    burst: int
    churn: int
    churn_per_second: float
    processes: int
    kinds: int
    deadline_seconds: float
    quiet_seconds: float
    is_go: bool
    program: Sequence[str]


async def _measure(client: Client, kubeconfig: Path, *, clusters: int, target: Target) -> dict[str, Any]:
    async with contextlib.AsyncExitStack() as stack:
        workers = await _start(stack, kubeconfig, clusters=clusters, target=target)
        objects = sum([await _count(client, kind) for kind in KINDS[: target.kinds]])
        engaged = await _engage(workers, clusters=clusters, objects=objects, target=target)
        names = [f"burst-{clusters}-{number}" for number in range(target.burst)]
        burst = await _burst(client, workers, names=names, clusters=clusters, target=target)
        churn = await _churn(client, workers, clusters=clusters, target=target)
        quiet = {"with_probes": await _quiet(client, workers, target=target)} if target.quiet_seconds else {}
    if target.quiet_seconds and not target.is_go:
        async with contextlib.AsyncExitStack() as stack:
            workers = await _start(stack, kubeconfig, clusters=clusters, target=target, probes=False)
            objects = sum([await _count(client, kind) for kind in KINDS[: target.kinds]])
            await _engage(workers, clusters=clusters, objects=objects, target=target)
            quiet["without_probes"] = await _quiet(client, workers, target=target)
    for kind, name in itertools.product(KINDS[: target.kinds], names):
        await client.delete(kind, name, namespace=NAMESPACE)
    for number in range(target.churn):
        await client.delete(CONFIG_MAPS, f"churn-{clusters}-{number}", namespace=NAMESPACE)
    options = {"clusters": clusters, "kinds": target.kinds, "processes": target.processes}
    return {**options, "engaged": engaged, "burst": burst, "churn": churn} | ({"quiet": quiet} if quiet else {})


async def _start(
    stack: contextlib.AsyncExitStack, kubeconfig: Path, *, clusters: int, target: Target, probes: bool = True
) -> list[Worker]:
    # The Leases of earlier workers may remain, so each worker has an identity of its own.
    prefix = f"{clusters}" if probes else f"{clusters}-silent"
    identities = [None] if target.processes == 1 else [f"{prefix}-{number}" for number in range(target.processes)]
    workers = [
        await stack.enter_async_context(
            started(kubeconfig, program=target.program, kinds=target.kinds, identity=identity, probes=probes)
        )
        for identity in identities
    ]
    await shared_out(workers, deadline_seconds=target.deadline_seconds)
    return workers


async def _quiet(client: Client, workers: Sequence[Worker], *, target: Target) -> dict[str, Any]:
    async def sample() -> list[float]:
        probes = sum([(await worker.ask(do="probes")).get("probes", 0) for worker in workers])
        server = _SERVER_CPU.search(await client.text("/metrics"))
        if server is None:
            raise LookupError("the API server has no process_cpu_seconds_total")
        return [sum(cpu_seconds(worker.pid) for worker in workers), float(server[1]), probes]

    before = await sample()
    await asyncio.sleep(target.quiet_seconds)
    worker, server, probes = (now - then for now, then in zip(await sample(), before, strict=True))
    return {
        "seconds": target.quiet_seconds,
        "worker_cpu_seconds": round(worker, 2),
        "api_server_cpu_seconds": round(server, 2),
        "version_probes": None if target.is_go else int(probes),
    }


async def _engage(workers: Sequence[Worker], *, clusters: int, objects: int, target: Target) -> dict[str, Any]:
    before = [await worker.ask(do="memory") for worker in workers]
    cpu = sum(cpu_seconds(worker.pid) for worker in workers)
    began = time.monotonic()
    await asyncio.gather(*(worker.ask(do="engage", clusters=clusters) for worker in workers))
    reached_at = await reconciled(workers, until=clusters * objects, deadline_seconds=target.deadline_seconds)
    after = [await worker.ask(do="memory") for worker in workers]
    growth_kib = sum(memory["rss_kib"] for memory in after) - sum(memory["rss_kib"] for memory in before)
    return {
        "seconds": round(reached_at - began, 2),
        "reconciles": clusters * objects,
        "cpu_seconds": round(sum(cpu_seconds(worker.pid) for worker in workers) - cpu, 2),
        "rss_mib_before": [round(memory["rss_kib"] / 1024, 1) for memory in before],
        "rss_mib_after": [round(memory["rss_kib"] / 1024, 1) for memory in after],
        "rss_kib_per_cluster": round(growth_kib / clusters, 1),
    }


async def _burst(
    client: Client, workers: Sequence[Worker], *, names: Sequence[str], clusters: int, target: Target
) -> dict[str, Any]:
    count_before = sum([(await worker.ask(do="count"))["reconciles"] for worker in workers])
    cpu_before = sum(cpu_seconds(worker.pid) for worker in workers)
    began = time.monotonic()
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def create(kind: Resource, name: str) -> None:
        async with at_once:
            await client.create(kind, _body(kind, name), namespace=NAMESPACE)

    kinds = KINDS[: target.kinds]
    await asyncio.gather(*(create(kind, name) for kind, name in itertools.product(kinds, names)))
    created_at = time.monotonic()
    expected = clusters * len(names) * len(kinds)
    reached_at = await reconciled(workers, until=count_before + expected, deadline_seconds=target.deadline_seconds)
    cpu_spent = sum(cpu_seconds(worker.pid) for worker in workers) - cpu_before
    return {
        "created": len(names) * len(kinds),
        "create_seconds": round(created_at - began, 2),
        "reconciles": expected,
        "seconds": round(reached_at - began, 2),
        "reconciles_per_second": round(expected / (reached_at - began)),
        "cpu_seconds": round(cpu_spent, 2),
        "reconciles_per_cpu_second": round(expected / cpu_spent) if cpu_spent else None,
    }


async def _churn(client: Client, workers: Sequence[Worker], *, clusters: int, target: Target) -> dict[str, Any]:
    count_before = sum([(await worker.ask(do="count"))["reconciles"] for worker in workers])
    for number in range(target.churn):
        annotations = {"benchmark/sent": str(time.monotonic_ns())}
        body = {"metadata": {"name": f"churn-{clusters}-{number}", "annotations": annotations}}
        await client.create(CONFIG_MAPS, body, namespace=NAMESPACE)
        await asyncio.sleep(1 / target.churn_per_second)
    await reconciled(workers, until=count_before + clusters * target.churn, deadline_seconds=target.deadline_seconds)
    latencies = sorted([value for worker in workers for value in (await worker.ask(do="latencies"))["milliseconds"]])
    return {
        "created": target.churn,
        "per_second": target.churn_per_second,
        "reconciles": len(latencies),
        "milliseconds": {
            "p50": round(statistics.median(latencies), 1),
            "p99": round(latencies[int(len(latencies) * 0.99)], 1),
            "max": round(latencies[-1], 1),
        },
    }


async def _count(client: Client, kind: Resource) -> int:
    return len((await client.list(kind)).items)


async def _fill(client: Client, *, kinds: int, objects: int) -> None:
    for kind in KINDS[:kinds]:
        for number in range(objects - await _count(client, kind)):
            await client.create(kind, _body(kind, f"object-{number}"), namespace=NAMESPACE)


def _body(kind: Resource, name: str) -> dict[str, Any]:
    content = {CONFIG_MAPS: {"data": {"key": "value"}}, SECRETS: {"data": {"key": "dmFsdWU="}}}
    return {"metadata": {"name": name}, **content.get(kind, {})}


async def run(clusters: Sequence[int], *, target: Target) -> list[dict[str, Any]]:
    """Measure each number of clusters."""
    async with fleet_server() as (client, kubeconfig):
        await _fill(client, kinds=target.kinds, objects=target.objects)
        return [await _measure(client, kubeconfig, clusters=number, target=target) for number in clusters]


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, nargs="+", default=[100, 500], help="numbers of clusters, one run each")
    parser.add_argument("--objects", type=int, default=11, help="objects of each kind in each cluster")
    parser.add_argument("--burst", type=int, default=200, help="objects of each kind to create at once")
    parser.add_argument("--churn", type=int, default=50, help="ConfigMaps to create one by one")
    parser.add_argument("--churn-per-second", type=float, default=5.0, help="rate of that")
    parser.add_argument("--kinds", type=int, choices=range(1, len(KINDS) + 1), default=1, help="kinds to watch")
    parser.add_argument("--processes", type=int, default=1, help="number of processes that divide the clusters")
    parser.add_argument("--deadline-seconds", type=float, default=300.0, help="time limit of each part")
    parser.add_argument("--quiet-seconds", type=float, default=0.0, help="time without changes to measure after that")
    parser.add_argument("--go", type=Path, help="a checkout of multicluster-runtime, to measure the runtime for Go")
    given = parser.parse_args()
    with program_of(given.go) as program:
        target = Target(
            objects=given.objects,
            burst=given.burst,
            churn=given.churn,
            churn_per_second=given.churn_per_second,
            processes=given.processes,
            kinds=given.kinds,
            deadline_seconds=given.deadline_seconds,
            quiet_seconds=given.quiet_seconds,
            is_go=given.go is not None,
            program=program,
        )
        load = os.getloadavg()
        runs = uvloop.run(run(given.clusters, target=target))
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load": [load, os.getloadavg()]}
    print(json.dumps({"machine": machine, "runs": runs}, indent=2))  # noqa: T201


if __name__ == "__main__":
    main()
