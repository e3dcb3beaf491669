"""Measures the gateway beside an API server: `python -m benchmarks.gateway`.

Runs `python -m kplane.embedded --gateway` with an awake control plane. Clients send requests to its API server directly
and through the gateway, in turns. Prints JSON:
- for each number of connections: requests a second and milliseconds, directly and through the gateway, and the ratio;
- the same for a list of many objects;
- memory growth of Envoy and its controller while clients hold many watches open.

A single process runs all clients, with uvloop and its own HTTP/1.1 client. `processor_milliseconds_each` is the
processor time of a request. The client process is no bottleneck if the API server needs much more processor time. All
programs share this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import uvloop

from benchmarks.load import Load, Target, ask, watch
from benchmarks.programs import API_SERVERS, Programs, cluster_with_gateway, growth, print_result
from benchmarks.visits import published_config
from kplane.api.names import (
    KUBECONFIG_EXTERNAL_KEY,
    KUBECONFIG_KEY,
)
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANES
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import CONFIG_MAPS

_NAME: Final = "measured"
_CONNECTIONS: Final = (1, 16, 64)
_LIST_CONNECTIONS: Final = 4
_SMALL: Final = "/api/v1/namespaces/default"
_LIST: Final = "/api/v1/namespaces/default/configmaps"
_OBJECT_BYTES: Final = 1024
_AT_ONCE: Final = 32
_READY_SECONDS: Final = 300.0
_EVENT_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.2
_STILL_SECONDS: Final = 5.0
_WAYS: Final = ("direct", "gateway")
_PARTS: Final = ("envoy", "gateway", API_SERVERS)


@dataclass(frozen=True, slots=True)
class Options:
    """Holds the options of a measurement."""

    rounds: int
    seconds: float
    watches: int
    objects: int


async def _ready(client: Client) -> dict[str, Target]:
    """Create an awake control plane, and return its direct target and its target through the gateway."""
    spec = {"deletionPolicy": "Destroy", "virtual": {"start": "Always"}}
    await client.create(CONTROL_PLANE_CLASSES, {"metadata": {"name": _NAME}, "spec": spec})
    await client.create(CONTROL_PLANES, {"metadata": {"name": _NAME}, "spec": {"classRef": {"name": _NAME}}})
    async with asyncio.timeout(_READY_SECONDS):
        while (await client.get(CONTROL_PLANES, _NAME)).get("status", {}).get("phase") != "Ready":  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE_SECONDS)
    keys = zip(_WAYS, (KUBECONFIG_KEY, KUBECONFIG_EXTERNAL_KEY), strict=True)
    configs = {way: await published_config(client, _NAME, key=key) for way, key in keys}
    async with asyncio.timeout(_READY_SECONDS):
        for target in map(Target.of, configs.values()):
            while not (await ask(target, _SMALL, connections=1, seconds=0.1)).seconds:  # noqa: ASYNC110
                await asyncio.sleep(_PAUSE_SECONDS)
    return {way: Target.of(config) for way, config in configs.items()}


async def _fill(client: Client, *, objects: int) -> None:
    slots = asyncio.Semaphore(_AT_ONCE)

    async def create(number: int) -> None:
        async with slots:
            metadata = {"name": f"filled-{number:05d}", "namespace": "default"}
            await client.create(CONFIG_MAPS, {"metadata": metadata, "data": {"value": "x" * _OBJECT_BYTES}})

    await asyncio.gather(*(create(number) for number in range(objects)))


async def _compare(
    ways: dict[str, Target], path: str, *, connections: int, options: Options, programs: Programs
) -> dict[str, Any]:
    """Send requests directly and through the gateway, in turns."""
    loads: dict[str, list[Load]] = {way: [] for way in ways}
    cpu_used: dict[str, dict[str, float]] = {way: dict.fromkeys((*_PARTS, "client"), 0.0) for way in ways}
    for _ in range(options.rounds):
        for way, target in ways.items():
            before, own = programs.processor(), time.process_time()
            loads[way].append(await ask(target, path, connections=connections, seconds=options.seconds))
            grown = growth(before, programs.processor()) | {"client": time.process_time() - own}
            for part in cpu_used[way]:
                cpu_used[way][part] += grown.get(part, 0.0)
    report: dict[str, Any] = {way: _figures(loads[way], cpu_used[way], seconds=options.seconds) for way in ways}
    direct, gateway = (report[way] for way in _WAYS)
    report["throughput_ratio"] = round(gateway["requests_a_second"] / max(direct["requests_a_second"], 1e-9), 3)
    report["p50_added_milliseconds"] = round(gateway["p50_milliseconds"] - direct["p50_milliseconds"], 3)
    return report


def _figures(loads: Sequence[Load], used: dict[str, float], *, seconds: float) -> dict[str, Any]:
    ordered = sorted(1000 * value for load in loads for value in load.seconds) or [0.0]
    number = max(1, sum(len(load.seconds) for load in loads))
    return {
        "requests_a_second": round(statistics.median(len(load.seconds) / seconds for load in loads), 1),
        "p50_milliseconds": round(statistics.median(ordered), 3),
        "p99_milliseconds": round(ordered[int(0.99 * (len(ordered) - 1))], 3),
        "bytes_each": sum(load.bytes for load in loads) // number,
        "errors": sum(len(load.errors) for load in loads),
        "processor_milliseconds_each": {part: round(1000 * value / number, 3) for part, value in used.items()},
    }


async def _watches(ways: dict[str, Target], tenant: Client, *, number: int, programs: Programs) -> dict[str, Any]:
    """Hold watches open through the gateway, and wait until each receives an event."""
    before = {part: each.anonymous for part, each in programs.memory().items()}
    path = f"{_LIST}?watch=true&resourceVersion=0&limit=1"
    async with watch(ways["gateway"], path, connections=number) as watchers:
        await asyncio.sleep(_STILL_SECONDS)
        received = [watcher.received for watcher in watchers]
        await tenant.create(CONFIG_MAPS, {"metadata": {"name": "seen-by-all", "namespace": "default"}})
        notified = 0
        ends = time.monotonic() + _EVENT_SECONDS
        while notified < number and time.monotonic() < ends:
            await asyncio.sleep(_PAUSE_SECONDS)
            notified = sum(each.received > size_before for each, size_before in zip(watchers, received, strict=True))
        grown = growth(before, {part: each.anonymous for part, each in programs.memory().items()})
        lost = sum(watcher.lost for watcher in watchers)
    mib = {part: round(grown[part], 1) for part in _PARTS}
    gateway_mib = round(grown["envoy"] + grown["gateway"], 1)
    return {"number": number, "told": notified, "lost": lost, "gateway_mib": gateway_mib, "mib": mib}


async def _run(options: Options, programs: Programs) -> dict[str, Any]:
    async with Client(ClusterConfig.load(programs.handle.admin_kubeconfig), field_manager="kplane") as client:
        ways = await _ready(client)
        config = await published_config(client, _NAME, key=KUBECONFIG_KEY)
    async with Client(config, field_manager="kplane") as tenant:
        load, small = os.getloadavg(), {}
        for connections in _CONNECTIONS:
            small[str(connections)] = await _compare(
                ways, _SMALL, connections=connections, options=options, programs=programs
            )
            sys.stderr.write(f"{connections} connections: {json.dumps(small[str(connections)])}\n")
        watches = await _watches(ways, tenant, number=options.watches, programs=programs)
        await _fill(tenant, objects=options.objects)
        lists = await _compare(ways, _LIST, connections=_LIST_CONNECTIONS, options=options, programs=programs)
    return {
        "load_average": [round(value, 1) for value in (*load, *os.getloadavg())],
        "small_by_connections": small,
        "watches": watches,
        "lists": {"objects": options.objects, "connections": _LIST_CONNECTIONS, **lists},
        "memory_mib": {part: round(value.anonymous, 1) for part, value in programs.memory().items()},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gateway", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--rounds", type=int, default=3, help="measurements of each way, in turns (default: %(default)s)")
    add("--seconds", type=float, default=5.0, help="duration of each (default: %(default)s)")
    add("--watches", type=int, default=500, help="watches that are open at once (default: %(default)s)")
    add("--objects", type=int, default=2000, help="ConfigMaps of 1 KiB in a list (default: %(default)s)")
    given = parser.parse_args(arguments)
    options = Options(given.rounds, given.seconds, given.watches, given.objects)
    with cluster_with_gateway() as programs:
        result = uvloop.run(_run(options, programs))
    print_result(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
