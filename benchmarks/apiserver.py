"""Measures settings of the Go runtime in a tenant's kube-apiserver: `python -m benchmarks.apiserver`.

Runs an etcd, and an API server for each setting below its own key prefix. A run measures all settings, so that their
ratios are comparable. Several rounds alternate the order of the settings.

Prints JSON with a row for each setting, with the medians of all rounds:
- start: processor seconds to `/readyz`;
- idle: anonymous memory, and processor seconds in a minute, of the API server and of its etcd;
- load: processor seconds and latency of many small requests at a fixed rate, and the memory after them;
- a large list: peak and rest of the memory, and processor seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.cost import cpu_seconds, memory_of
from kplane.binaries.programs import resolve
from kplane.components.api_server import API_SERVER_PORTS, api_server_component, server_url, serving_hosts
from kplane.components.etcd import ETCD_PORTS, EtcdAccess, client_url, etcd_component
from kplane.embedded.components import bound
from kplane.embedded.credentials import ADMINISTRATOR_GROUPS, Credentials
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.workloads import Component, Phase, ProcessRuntime

_HOST: Final = "127.0.0.1"
_READY_SECONDS: Final = 240.0
_POLL_SECONDS: Final = 0.05
_AT_ONCE: Final = 8
_NAMESPACE: Final = "default"
_KIBIBYTE: Final = "x" * 1024


@dataclass(frozen=True, slots=True)
class Setting:
    """Environment variables and additional flags of a kube-apiserver."""

    env: dict[str, str]
    flags: tuple[str, ...] = ()

    @classmethod
    def parse(cls, words: str) -> Setting:
        """Read a setting such as `GOGC=50 --watch-cache=false`; `-` stands for Go's defaults."""
        parts = [word for word in words.split() if word != "-"]
        flags = tuple(word for word in parts if word.startswith("--"))
        return cls(dict(word.split("=", 1) for word in parts if word not in flags), flags)


@dataclass(frozen=True, slots=True)
class Load:
    """Holds the options of a measurement."""

    settle_seconds: float
    idle_seconds: float
    rate: float
    load_seconds: float
    objects: int


@dataclass(frozen=True, slots=True)
class Etcd:
    """Gives access to the etcd that all API servers of a run share."""

    credentials: Credentials
    access: EtcdAccess
    pid: int


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Gives access to the API server under measurement."""

    name: str
    pid: int
    config: ClusterConfig


async def _run(runtime: ProcessRuntime, component: Component) -> int:
    """Run a component until it is ready; returns the id of its process."""
    await runtime.apply(component)
    async with asyncio.timeout(_READY_SECONDS):
        while runtime.state(component.name).phase is not Phase.READY:  # noqa: ASYNC110 - a few times in a run
            await asyncio.sleep(_POLL_SECONDS)
    pid = runtime.state(component.name).pid
    if pid is None:
        raise RuntimeError(f"{component.name} does not run")
    return pid


async def _start_etcd(runtime: ProcessRuntime, *, directory: Path) -> Etcd:
    credentials = Credentials(directory / "credentials", host=_HOST)
    address = await runtime.reserve("etcd", ports=ETCD_PORTS)
    certificates = credentials.certificates(hosts=(_HOST,))
    if certificates.etcd_server is None:
        raise RuntimeError("the etcd has no serving certificate")
    ca = credentials.authorities.etcd.certificate
    etcd = etcd_component("etcd", address=address, ca=ca, server=certificates.etcd_server)
    pid = await _run(runtime, bound(etcd, args=("--unsafe-no-fsync",)))
    return Etcd(credentials, EtcdAccess((client_url(address),), ca, certificates.etcd_client), pid)


async def _start(runtime: ProcessRuntime, name: str, *, etcd: Etcd, setting: Setting) -> ApiServer:
    address = await runtime.reserve(name, ports=API_SERVER_PORTS)
    component = api_server_component(
        name,
        address=address,
        authorities=etcd.credentials.authorities,
        certificates=etcd.credentials.certificates(hosts=serving_hosts(address)),
        etcd=etcd.access,
        etcd_prefix=f"/clusters/{name}",
        etcd_shared=True,
    )
    described = replace(component, env=setting.env, args=(*component.args, *setting.flags))
    pid = await _run(runtime, bound(described))
    administrator = etcd.credentials.kubeconfig(
        server_url(address), user="kubernetes-admin", groups=ADMINISTRATOR_GROUPS
    )
    return ApiServer(name, pid, ClusterConfig.from_kubeconfig(administrator))


async def _idle(server: ApiServer, *, etcd: Etcd, load: Load) -> dict[str, float]:
    await asyncio.sleep(load.settle_seconds)
    before, etcd_before = cpu_seconds(server.pid), cpu_seconds(etcd.pid)
    await asyncio.sleep(load.idle_seconds)
    minute = 60 / max(load.idle_seconds, 1e-9)
    return {
        "idle_anonymous_mib": memory_of(server.pid).anonymous,
        "idle_cpu_seconds_a_minute": (cpu_seconds(server.pid) - before) * minute,
        "idle_cpu_seconds_a_minute_of_etcd": (cpu_seconds(etcd.pid) - etcd_before) * minute,
    }


async def _small_requests(client: Client, *, server: ApiServer, load: Load) -> dict[str, float]:
    """Send reads, writes and short lists, at a fixed rate as long as the machine keeps up."""
    for index in range(20):
        body = {"metadata": {"name": f"small-{index}", "namespace": _NAMESPACE}, "data": {"text": _KIBIBYTE}}
        await client.create(CONFIG_MAPS, body)
    seconds: list[float] = []
    # Limits the requests in flight. Otherwise requests would time out on a busy machine, and runs would differ.
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def one(index: int) -> None:
        async with at_once:
            began, name = time.monotonic(), f"small-{index % 20}"
            match index % 4:
                case 0:
                    await client.patch(CONFIG_MAPS, name, {"data": {"at": str(index)}}, namespace=_NAMESPACE)
                case 1:
                    await client.list(CONFIG_MAPS, namespace=_NAMESPACE)
                case _:
                    await client.get(CONFIG_MAPS, name, namespace=_NAMESPACE)
            seconds.append(time.monotonic() - began)

    before, began = cpu_seconds(server.pid), time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for index in range(int(load.rate * load.load_seconds)):
            await asyncio.sleep(max(0.0, began + index / load.rate - time.monotonic()))
            tasks.create_task(one(index))
    used = cpu_seconds(server.pid) - before
    ordered = sorted(seconds)
    return {
        "load_cpu_seconds": used,
        "load_wall_seconds": time.monotonic() - began,
        "load_p50_ms": 1000 * statistics.median(ordered),
        "load_p99_ms": 1000 * ordered[int(len(ordered) * 0.99)],
        "load_anonymous_mib": memory_of(server.pid).anonymous,
    }


async def _large_list(client: Client, *, server: ApiServer, load: Load) -> dict[str, float]:
    at_once, before = asyncio.Semaphore(_AT_ONCE), cpu_seconds(server.pid)

    async def create(index: int) -> None:
        body = {"metadata": {"name": f"large-{index}", "namespace": _NAMESPACE}, "data": {"text": _KIBIBYTE}}
        async with at_once:
            await client.create(CONFIG_MAPS, body)

    async with asyncio.TaskGroup() as tasks:
        for index in range(load.objects):
            tasks.create_task(create(index))
    created = cpu_seconds(server.pid)
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # resets the high-water mark, see proc(5)
    for _ in range(3):
        await client.request("GET", CONFIG_MAPS.path(namespace=_NAMESPACE))
    listed = cpu_seconds(server.pid)
    status = Path(f"/proc/{server.pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    mapped_files = int(fields["RssFile"].split()[0]) + int(fields["RssShmem"].split()[0])
    return {
        "create_cpu_seconds": created - before,
        "list_cpu_seconds": listed - created,
        "list_peak_anonymous_mib": (int(fields["VmHWM"].split()[0]) - mapped_files) / 1024,
    }


async def _measure(words: str, *, name: str, etcd: Etcd, load: Load, directory: Path) -> dict[str, float]:
    """Start an API server, measure it, and stop it."""
    async with ProcessRuntime(directory / name, programs=resolve().directories) as runtime:
        server = await _start(runtime, name, etcd=etcd, setting=Setting.parse(words))
        figures = {"start_cpu_seconds": cpu_seconds(server.pid)}
        figures |= await _idle(server, etcd=etcd, load=load)
        async with Client(server.config, timeout_seconds=60.0, field_manager="kplane") as client:
            figures |= await _small_requests(client, server=server, load=load)
            figures |= await _large_list(client, server=server, load=load)
        await asyncio.sleep(load.settle_seconds)
        return figures | {"rest_anonymous_mib": memory_of(server.pid).anonymous}


async def _rounds(
    settings: list[str], *, rounds: int, load: Load, directory: Path
) -> dict[str, list[dict[str, float]]]:
    rows: dict[str, list[dict[str, float]]] = {words: [] for words in settings}
    async with ProcessRuntime(directory / "etcd", programs=resolve().directories) as runtime:
        etcd = await _start_etcd(runtime, directory=directory)
        for number in range(rounds):
            order = settings if number % 2 == 0 else settings[::-1]
            for place, words in enumerate(order):
                name = f"tenant-{number}-{place}"
                row = await _measure(words, name=name, etcd=etcd, load=load, directory=directory)
                rows[words].append(row)
                sys.stderr.write(f"{number} {words}: {json.dumps(_rounded(row))}\n")
    return rows


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in values.items()}


def _median(rows: list[dict[str, float]]) -> dict[str, float]:
    return _rounded({name: statistics.median(row[name] for row in rows) for name in rows[0]}) if rows else {}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rounds", type=int, default=2, help="number of rounds, with the settings in alternating order")
    add("--settle-seconds", type=float, default=60.0, help="pause after the start, and after the large list")
    add("--idle-seconds", type=float, default=60.0, help="duration of the measurement at rest")
    add("--rate", type=float, default=200.0, help="small requests in a second")
    add("--load-seconds", type=float, default=30.0, help="duration of the small requests")
    add("--objects", type=int, default=5000, help="objects of 1 KiB in the large list")
    add("settings", nargs="+", help="such as 'GOGC=50 --watch-cache=false'; '-' for Go's defaults")
    given = parser.parse_args()
    load = Load(given.settle_seconds, given.idle_seconds, given.rate, given.load_seconds, given.objects)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kplane-benchmark-")))
        before = os.getloadavg()
        results = asyncio.run(_rounds(given.settings, rounds=given.rounds, load=load, directory=directory))
    load_average = [round(value, 1) for value in (*before, *os.getloadavg())]
    rows = {words: _median(rows) for words, rows in results.items()}
    result = {"load_average": load_average, "rounds": given.rounds, "settings": rows}
    json.dump(result, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
