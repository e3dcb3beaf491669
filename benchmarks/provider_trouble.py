"""Measures a fleet in trouble: `python -m benchmarks.provider_trouble --clusters 100`.

A kube-apiserver stands for N clusters, as in `benchmarks.provider`. The controller for ConfigMaps counts reconciles.
Prints JSON with these times:

- `silent`: from the first cluster to the reconcile of the last object. In the second run, clusters whose server never
  answers are added before the others.
- `flood`: from the create request of a ConfigMap to its reconcile, in the other clusters. In the second run, a single
  cluster has thousands of requests, which take a millisecond each.
- `killed`: from the create request of an object, right after a peer is killed, until the other peer has reconciled the
  object in each cluster.
- `hub`: from the create request of an object of the hub to a reconcile for each member, by two peers together. The
  report also counts surplus reconciles.
- `outage`: from the return of a cluster's API server to the reconcile of the first and of the last request. Requests
  fail during the outage. `processor_seconds` is the processor time of the worker during the outage.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.cost import cpu_seconds
from benchmarks.gate import Gate
from benchmarks.provider_processes import NAMESPACE, Worker, fleet_server, program_of, reconciled, shared_out, started
from benchmarks.surroundings import silent_servers
from kplane.provider import Client
from kplane.provider.client.resources import CONFIG_MAPS

_SETTLED_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class Trouble:
    """Holds the options, and the client and command that all parts use."""

    client: Client
    kubeconfig: Path
    clusters: int
    silent: int
    flood: int
    churn: int
    outage_requests: int
    outage_seconds: float
    deadline_seconds: float
    program: Sequence[str]

    async def objects(self) -> int:
        """Return the number of ConfigMaps, which each cluster sees."""
        return len((await self.client.list(CONFIG_MAPS)).items)

    async def create(self, name: str, **annotations: str) -> float:
        """Create a ConfigMap. Returns the start time of the request on the monotonic clock."""
        began = time.monotonic()
        body = {"metadata": {"name": name, "annotations": annotations}}
        await self.client.create(CONFIG_MAPS, body, namespace=NAMESPACE)
        return began

    async def counted(self, workers: Sequence[Worker]) -> int:
        """Return the number of reconciles until now."""
        return sum([int((await worker.ask(do="count"))["reconciles"]) for worker in workers])

    async def last(self, workers: Sequence[Worker], *, until: int) -> float:
        """Return the time of the reconcile with this number."""
        return await reconciled(workers, until=until, deadline_seconds=self.deadline_seconds)


async def _silent(trouble: Trouble, *, silent: int) -> float:
    with silent_servers(silent) as urls:
        async with started(trouble.kubeconfig, program=trouble.program) as worker:
            expected = trouble.clusters * await trouble.objects()
            began = time.monotonic()
            await worker.ask(do="engage", clusters=trouble.clusters, silent=urls)
            return await trouble.last([worker], until=expected) - began


async def _flood(trouble: Trouble) -> dict[str, Any]:
    async with started(trouble.kubeconfig, program=trouble.program) as worker:
        expected = trouble.clusters * await trouble.objects()
        await worker.ask(do="engage", clusters=trouble.clusters)
        await trouble.last([worker], until=expected)
        at_rest = await _churn(trouble, worker, name="rest")
        await worker.ask(do="flood", requests=trouble.flood)
        return {"at_rest": at_rest, "flooded": await _churn(trouble, worker, name="flood")}


async def _churn(trouble: Trouble, worker: Worker, *, name: str) -> dict[str, float]:
    since = await trouble.counted([worker])
    for number in range(trouble.churn):
        await trouble.create(f"churn-{name}-{number}", **{"benchmark/sent": str(time.monotonic_ns())})
        await asyncio.sleep(0.2)
    # The flooded cluster may be behind, so the benchmark does not wait for its reconciles.
    await trouble.last([worker], until=since + (trouble.clusters - 1) * trouble.churn)
    latencies = sorted((await worker.ask(do="latencies"))["milliseconds"])
    return {"p50": round(statistics.median(latencies), 1), "p99": round(latencies[int(len(latencies) * 0.99)], 1)}


@contextlib.asynccontextmanager
async def _two_peers(trouble: Trouble, *, name: str, hub: bool = False) -> AsyncIterator[list[Worker]]:
    async with contextlib.AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                started(trouble.kubeconfig, program=trouble.program, identity=f"{name}-{number}", hub=hub)
            )
            for number in range(2)
        ]
        await shared_out(workers, deadline_seconds=trouble.deadline_seconds)
        expected = trouble.clusters * await trouble.objects()
        await asyncio.gather(*(worker.ask(do="engage", clusters=trouble.clusters) for worker in workers))
        await trouble.last(workers, until=expected)
        yield workers


async def _killed(trouble: Trouble) -> float:
    async with _two_peers(trouble, name="killed") as (survivor, victim):
        since, objects = await trouble.counted([survivor]), await trouble.objects()
        victim_clusters = trouble.clusters - (since // objects)
        victim.kill()
        began = await trouble.create("after-the-kill")
        # The survivor reconciles the new object in its own clusters, and all objects in the clusters of the victim.
        return (
            await trouble.last(
                [survivor], until=since + trouble.clusters - victim_clusters + victim_clusters * (objects + 1)
            )
            - began
        )


async def _hub(trouble: Trouble) -> dict[str, Any]:
    async with _two_peers(trouble, name="hub", hub=True) as workers:
        since = await trouble.counted(workers)
        began = await trouble.create("hub-object")
        # All clusters are the same API server: each reconciles the object as its own, and as an object of the hub.
        expected = 2 * trouble.clusters
        seconds = await trouble.last(workers, until=since + expected) - began
        await asyncio.sleep(_SETTLED_SECONDS)
        surplus = await trouble.counted(workers) - since - expected
        return {"seconds": round(seconds, 3), "reconciles": expected, "reconciles_too_many": surplus}


async def _outage(trouble: Trouble) -> dict[str, Any]:
    for number in range(trouble.outage_requests):
        await trouble.create(f"outage-{number}")
    async with (
        Gate(trouble.client.config.server) as gate,
        started(trouble.kubeconfig, program=trouble.program) as worker,
    ):
        await worker.ask(do="engage", clusters=0, gated=gate.url)
        await trouble.last([worker], until=await trouble.objects())
        await worker.ask(do="gated")
        await gate.close()
        processor_seconds = cpu_seconds(worker.pid)
        await worker.ask(do="enqueue", requests=trouble.outage_requests)
        await asyncio.sleep(trouble.outage_seconds)
        processor_seconds = cpu_seconds(worker.pid) - processor_seconds
        failures = (await worker.ask(do="gated"))["failures"]
        back = time.monotonic()
        await gate.open()
        moments: list[float] = []
        # The retry delay of a request may be as long as the outage.
        async with asyncio.timeout(2 * trouble.outage_seconds + trouble.deadline_seconds):
            while len(moments) < trouble.outage_requests:
                moments += (await worker.ask(do="gated"))["moments"]
                await asyncio.sleep(_POLL_SECONDS)
    return {
        "seconds": {"first": round(min(moments) - back, 2), "last": round(max(moments) - back, 2)},
        "failures": failures,
        "processor_seconds": round(processor_seconds, 2),
    }


async def run(given: argparse.Namespace, *, program: Sequence[str]) -> dict[str, Any]:
    """Measure all parts."""
    async with fleet_server() as (client, kubeconfig):
        options = {name: value for name, value in vars(given).items() if name != "go"}
        trouble = Trouble(client, kubeconfig, program=program, **options)
        silent = {"without": await _silent(trouble, silent=0), "with": await _silent(trouble, silent=given.silent)}
        flood = await _flood(trouble)
        killed, hub = await _killed(trouble), await _hub(trouble)
        outage = await _outage(trouble)
    return {
        "silent": {"clusters": given.silent, "seconds": {name: round(value, 2) for name, value in silent.items()}},
        "flood": {"requests": given.flood, "milliseconds": flood},
        "killed": {"seconds": round(killed, 2)},
        "hub": hub,
        "outage": {"outage_seconds": given.outage_seconds, "requests": given.outage_requests, **outage},
    }


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=100, help="number of clusters")
    parser.add_argument("--silent", type=int, default=20, help="clusters that never answer")
    parser.add_argument("--flood", type=int, default=100_000, help="requests for one cluster")
    parser.add_argument("--churn", type=int, default=25, help="ConfigMaps to create one by one")
    parser.add_argument("--outage-requests", type=int, default=30, help="requests of the cluster that is down")
    parser.add_argument("--outage-seconds", type=float, default=300.0, help="how long its API server is down")
    parser.add_argument("--deadline-seconds", type=float, default=300.0, help="time limit of each part")
    parser.add_argument("--go", type=Path, help="a checkout of multicluster-runtime, to measure the runtime for Go")
    given = parser.parse_args()
    with program_of(given.go) as program:
        load = os.getloadavg()
        result = uvloop.run(run(given, program=program))
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load": [load, os.getloadavg()]}
    print(json.dumps({"machine": machine, "clusters": given.clusters, **result}, indent=2))  # noqa: T201


if __name__ == "__main__":
    main()
