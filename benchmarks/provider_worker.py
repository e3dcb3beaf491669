"""Runs the manager that `benchmarks.provider` measures, controlled by lines of JSON on standard input."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import uvloop
from typing_extensions import override

from kplane.provider import (
    Client,
    Cluster,
    ClusterConfig,
    Manager,
    ProviderError,
    Request,
    Sharded,
    controller,
    engage,
    enqueue_mapped,
)
from kplane.provider.client import liveness, watch
from kplane.provider.client.resources import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS
from kplane.provider.controllers.sources import Channel
from kplane.provider.providers.clusters import ClustersProvider

KINDS = (CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS)
"""Watched kinds. Each has its own controller."""

FLOODED = "cluster-0"
"""Cluster of all flood requests."""

GATED = "gated"
"""The cluster whose API server goes down."""


_YEAR_SECONDS = 365 * 86400.0


class Meter:
    """Counts reconciles. Flood requests take a millisecond each, and are not counted."""

    def __init__(self) -> None:
        self.manager: Manager | None = None
        self.reconciles = 0
        self.last = 0.0
        self.milliseconds: list[float] = []
        self.moments: list[float] = []
        """Times at which objects of the gated cluster were read, on the monotonic clock."""
        self.failures = 0
        self.probes = 0
        """Number of requests for `/version`, by which clients look for hanging API servers."""
        self.flood: Channel[Request] = Channel()
        self.flooded = False

    async def reconcile(self, request: Request) -> None:
        """Count the call. For a churn object, record the latency since its create request."""
        if request.name.startswith("flood-"):
            await asyncio.sleep(0.001)
            return
        if request.cluster == GATED:
            await self._read(request)
        self.reconciles += 1
        self.last = time.monotonic()
        if request.name.startswith("churn-") and self.manager is not None:
            cache = self.manager.get_cluster(request.cluster).cache
            config_map = await cache.get(CONFIG_MAPS, request.name, namespace=request.namespace)
            sent = int(config_map["metadata"]["annotations"]["benchmark/sent"])
            if request.cluster != FLOODED or not self.flooded:
                self.milliseconds.append((time.monotonic_ns() - sent) / 1e6)

    async def _read(self, request: Request) -> None:
        if self.manager is None:
            return
        client = self.manager.get_cluster(GATED).client
        try:
            await client.get(CONFIG_MAPS, request.name, namespace=request.namespace)
        except ProviderError:
            self.failures += 1
            raise
        self.moments.append(time.monotonic())

    def members(self, _: Cluster, found: dict[str, Any]) -> Iterable[Request]:
        """Map an object of the hub to a request for each member."""
        metadata = found["metadata"]
        if self.manager is not None and metadata["name"].startswith("hub-"):
            for name in self.manager.cluster_names():
                yield Request(name, metadata["namespace"], metadata["name"])


class _Probed(Cluster):
    """A cluster whose probes a meter counts."""

    meter: Meter

    @override
    def make_client(self) -> Client:
        client, meter = super().make_client(), self.meter
        probe = client.probe

        async def counted(path: str = "/readyz", *, timeout_seconds: float | None = None) -> None:
            meter.probes += path == "/version"
            await probe(path, timeout_seconds=timeout_seconds)

        client.probe = counted  # type: ignore[method-assign]
        return client


def _probed(name: str, config: ClusterConfig, meter: Meter) -> Cluster:
    cluster = _Probed(name, config=config)
    cluster.meter = meter
    return cluster


def _stop_probes() -> None:
    """Let clients of this process never probe a server that is silent."""
    # Not infinite: timers of uvloop have a maximum.
    for module in (liveness, watch):
        vars(module)["IDLE_SECONDS"] = _YEAR_SECONDS


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
    match question["do"]:
        case "engage":
            silent = [ClusterConfig(server) for server in question.get("silent", ())]
            clusters = [
                *(Cluster(f"silent-{number}", config=silent_config) for number, silent_config in enumerate(silent)),
                *(_probed(f"cluster-{number}", config, meter) for number in range(question["clusters"])),
            ]
            if gated := question.get("gated"):
                clusters.append(Cluster(GATED, config=dataclasses.replace(config, server=gated)))
            await asyncio.gather(*map(fleet.add, clusters))
            return {}
        case "enqueue":
            for number in range(question["requests"]):
                meter.flood.put(Request(GATED, "benchmark", f"outage-{number}"))
            return {}
        case "gated":
            moments, meter.moments = meter.moments, []
            failures, meter.failures = meter.failures, 0
            return {"moments": moments, "failures": failures}
        case "flood":
            meter.flooded = True
            for number in range(question["requests"]):
                meter.flood.put(Request(FLOODED, "benchmark", f"flood-{number}"))
            return {}
        case "shards":
            stats = coordinator.stats if coordinator is not None else None
            return {"owned": stats.owned if stats else 0, "all": stats.fences if stats else 0}
        case "memory":
            return {"rss_kib": _rss_kib()}
        case "probes":
            return {"probes": meter.probes}
        case "latencies":
            milliseconds, meter.milliseconds = meter.milliseconds, []
            return {"milliseconds": milliseconds}
        case _:
            return {"reconciles": meter.reconciles, "last": meter.last}


async def _run(*, kubeconfig: str, kinds: int, identity: str | None, hub: bool, probes: bool = True) -> None:
    if not probes:
        _stop_probes()
    config, fleet, meter = ClusterConfig.load(Path(kubeconfig)), ClustersProvider(), Meter()
    local = Cluster("", config=config)
    coordinator = None if identity is None else Sharded(local.client, namespace="kube-system", identity=identity)
    meter.manager = Manager(config, fleet, coordinator=coordinator, name="benchmark")
    for kind in KINDS[:kinds]:
        builder = controller(meter.manager).for_(kind).with_options(workers=8)
        if kind is CONFIG_MAPS:
            builder.watches_raw(meter.flood)
        builder.build(meter.reconcile)
    if hub:
        handler = enqueue_mapped(meter.members, preserve_cluster=True)
        hub_builder = (
            controller(meter.manager).named("hub").watches(CONFIG_MAPS, handler, engage(local=True, provider=False))
        )
        hub_builder.build(meter.reconcile)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with meter.manager:
        while line := await reader.readline():
            answer = await _answer(json.loads(line), meter=meter, config=config, fleet=fleet, coordinator=coordinator)
            sys.stdout.write(f"{json.dumps(answer)}\n")
            sys.stdout.flush()
    await local.aclose()


if __name__ == "__main__":
    uvloop.run(_run(**json.loads(sys.argv[1])))
