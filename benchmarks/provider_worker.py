"""Runs the manager that `benchmarks.provider` measures, controlled by lines of JSON on standard input."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from kplane.provider import Cluster, ClusterConfig, Manager, Request, Sharded, controller
from kplane.provider.client.resources import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS
from kplane.provider.providers.clusters import ClustersProvider

KINDS = (CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS)
"""With a controller for each."""


class Meter:
    """Counts reconciles, and does nothing else."""

    def __init__(self) -> None:
        self.manager: Manager | None = None
        self.reconciles = 0
        self.last = 0.0
        self.milliseconds: list[float] = []

    async def reconcile(self, request: Request) -> None:
        """Count the call. If the object has the time of its creation, record the latency."""
        self.reconciles += 1
        self.last = time.monotonic()
        if request.name.startswith("churn-") and self.manager is not None:
            cache = self.manager.get_cluster(request.cluster).cache
            found = await cache.get(CONFIG_MAPS, request.name, namespace=request.namespace)
            sent = int(found["metadata"]["annotations"]["benchmark/sent"])
            self.milliseconds.append((time.monotonic_ns() - sent) / 1e6)


def _rss_kib() -> int:
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise LookupError("/proc/self/status has no VmRSS")


async def _answer(
    question: dict[str, Any],
    *,
    meter: Meter,
    config: ClusterConfig,
    fleet: ClustersProvider,
    coordinator: Sharded | None,
) -> dict[str, Any]:
    if question["do"] == "engage":
        await asyncio.gather(
            *(fleet.add(Cluster(f"cluster-{number}", config=config)) for number in range(question["clusters"]))
        )
        return {}
    if question["do"] == "shards":
        stats = coordinator.stats if coordinator is not None else None
        return {"owned": stats.owned if stats else 0, "all": stats.fences if stats else 0}
    if question["do"] == "memory":
        return {"rss_kib": _rss_kib()}
    if question["do"] == "latencies":
        return {"milliseconds": meter.milliseconds}
    return {"reconciles": meter.reconciles, "last": meter.last}


async def _run(kubeconfig: Path, kinds: int, identity: str | None) -> None:
    config, fleet, meter = ClusterConfig.load(kubeconfig), ClustersProvider(), Meter()
    local = Cluster("", config=config)
    coordinator = None if identity is None else Sharded(local.client, namespace="kube-system", identity=identity)
    meter.manager = Manager(config, fleet, coordinator=coordinator)
    for kind in KINDS[:kinds]:
        controller(meter.manager).for_(kind).with_options(workers=8).build(meter.reconcile)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with meter.manager:
        while line := await reader.readline():
            answer = await _answer(json.loads(line), meter=meter, config=config, fleet=fleet, coordinator=coordinator)
            sys.stdout.write(f"{json.dumps(answer)}\n")
            sys.stdout.flush()
    await local.aclose()


if __name__ == "__main__":
    uvloop.run(_run(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None))
