"""Measures the operator with a fleet of control planes: `python -m benchmarks.fleet`.

Creates N ControlPlanes with their ControlPlaneEndpoints and ControlPlaneRegistrations at once, on a management cluster
of a plain etcd and kube-apiserver. All endpoints lead through an Envoy to a second kube-apiserver, so the operator is
the bottleneck. The operator runs as a separate program, with its own identity and rights. `--operator` replaces its
command.

Prints JSON:
- seconds until all control planes are Ready and all registrations are resolved;
- processor time and memory of the operator, also at rest;
- requests to both API servers for each control plane.

All programs share this machine, so the result includes their load.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.cost import PeakMemory, cpu_seconds, requests_by_kind
from benchmarks.surroundings import ApiServer, free_port, shared_address, start_api_server
from kplane.binaries.interpreter import module_command
from kplane.binaries.programs import resolve
from kplane.controlplane_operator.kinds import (
    CONTROL_PLANE_CLASSES,
    CONTROL_PLANE_ENDPOINTS,
    CONTROL_PLANE_REGISTRATIONS,
    CONTROL_PLANES,
)
from kplane.embedded.credentials import OPERATOR_USER, SERVICE_ACCOUNT_GROUPS, write_private
from kplane.embedded.manifests import install
from kplane.provider import Client, ClusterConfig, Event, Informer, Resource
from kplane.workloads import ProcessRuntime

_OPERATOR: Final = (
    f"{shlex.join(module_command('kplane.controlplane_operator.main'))} --kubeconfig={{kubeconfig}}"
    " --cluster-kubeconfig={cluster_kubeconfig} --state-dir={directory} {programs} --listen=127.0.0.1:{port}"
)
_CLASS: Final = "measured"
_READY_SECONDS: Final = 60.0
_AT_ONCE: Final = 64
_LOG_BYTES: Final = 4000


@dataclass(frozen=True, slots=True)
class Target:
    """Holds the options of a measurement."""

    control_planes: int
    operator: str
    deadline_seconds: float
    settle_seconds: float
    rest_seconds: float


@dataclass(slots=True)
class Progress:
    """Records the time at which each object reached its state, on the monotonic clock."""

    expected: int
    accept: Any
    reached: dict[str, float] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    def saw(self, event: Event) -> None:
        """Handle an event of a watch."""
        if event.kind != "DELETED" and event.name not in self.reached and self.accept(event.object):
            self.reached[event.name] = time.monotonic()
            if len(self.reached) == self.expected:
                self.complete.set()

    def report(self, began: float) -> dict[str, Any]:
        """Summarize the seconds since `began` of the objects that reached their state."""
        seconds = sorted(reached_at - began for reached_at in self.reached.values())
        if not seconds:
            return {"n": 0}
        return {
            "n": len(seconds),
            "first": round(seconds[0], 2),
            "p50": round(statistics.median(seconds), 2),
            "all": round(seconds[-1], 2) if len(seconds) == self.expected else None,
        }


def _is_ready(obj: dict[str, Any]) -> bool:
    conditions = obj.get("status", {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _is_resolved(obj: dict[str, Any]) -> bool:
    status = obj.get("status", {})
    path = f"/clusters/{obj['metadata']['name']}/control-plane"
    return status.get("ready") is True and str(status.get("resolvedEndpoint", "")).endswith(path)


@contextlib.asynccontextmanager
async def _running(
    target: Target, *, directory: Path, management: ApiServer, tenants: ClusterConfig, programs: tuple[Path, ...]
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the operator within the context. If it ends by itself, copy its log to standard error."""
    kubeconfig, cluster_kubeconfig = directory / "operator.kubeconfig", directory / "tenants.kubeconfig"
    write_private(kubeconfig, content=management.kubeconfig(OPERATOR_USER, groups=SERVICE_ACCOUNT_GROUPS))
    write_private(cluster_kubeconfig, content=json.dumps(tenants.to_kubeconfig()).encode())
    command = target.operator.format(
        kubeconfig=shlex.quote(str(kubeconfig)),
        cluster_kubeconfig=shlex.quote(str(cluster_kubeconfig)),
        directory=shlex.quote(str(directory / "operator")),
        programs=" ".join(f"--programs-dir={shlex.quote(str(path))}" for path in programs),
        port=free_port(),
    )
    with (directory / "operator.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *shlex.split(command), env={**os.environ, "KUBECONFIG": str(kubeconfig)}, stdout=log, stderr=log
        )
    sys.stderr.write(f"operator: pid {process.pid}\n")
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
        else:
            sys.stderr.write((directory / "operator.log").read_bytes()[-_LOG_BYTES:].decode(errors="replace"))


async def _until_served(client: Client) -> None:
    """Create a class, and wait until the operator writes its status."""
    await client.create(CONTROL_PLANE_CLASSES, {"metadata": {"name": _CLASS}, "spec": {"deletionPolicy": "Retain"}})
    async with asyncio.timeout(_READY_SECONDS):
        while not (await client.get(CONTROL_PLANE_CLASSES, _CLASS)).get("status"):  # noqa: ASYNC110 - once in a run
            await asyncio.sleep(0.05)


async def _create(client: Client, *, number: int, server: str) -> None:
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def create(resource: Resource, name: str, spec: dict[str, Any]) -> None:
        async with at_once:
            await client.create(resource, {"metadata": {"name": name}, "spec": spec})

    async with asyncio.TaskGroup() as tasks:
        for index in range(number):
            name = f"tenant-{index:04d}"
            registration = {"controlPlaneRef": {"name": name}, "services": ["controllers"]}
            control_plane = {"classRef": {"name": _CLASS}, "endpointRef": {"name": name}}
            tasks.create_task(create(CONTROL_PLANE_REGISTRATIONS, name, registration))
            tasks.create_task(create(CONTROL_PLANES, name, control_plane))
            url = f"{server}/clusters/{name}/control-plane"
            tasks.create_task(create(CONTROL_PLANE_ENDPOINTS, name, {"endpoint": url}))


def _per_control_plane(before: Counter[str], after: Counter[str], *, number: int, own: Counter[str]) -> dict[str, Any]:
    rates = {kind: (count - own[kind]) / number for kind, count in (after - before).items()}
    rounded = {kind: round(value, 2) for kind, value in sorted(rates.items()) if value >= 0.005}
    return {"all": round(sum(rounded.values()), 2), **rounded}


async def _measure(target: Target, *, management: ApiServer, tenants: ApiServer, address: str, pid: int) -> Any:
    number = target.control_planes
    own = Counter(
        {
            f"POST {each.plural}": number
            for each in (CONTROL_PLANES, CONTROL_PLANE_ENDPOINTS, CONTROL_PLANE_REGISTRATIONS)
        }
    )
    configs = [each.administrator() for each in (management, tenants)]
    ready, resolved = Progress(number, _is_ready), Progress(number, _is_resolved)
    memory = PeakMemory(pid)
    async with Client(management.administrator(), field_manager="kplane") as client, asyncio.TaskGroup() as tasks:
        watchers = [
            tasks.create_task(Informer(client, CONTROL_PLANES).run(ready.saw)),
            tasks.create_task(Informer(client, CONTROL_PLANE_REGISTRATIONS).run(resolved.saw)),
            tasks.create_task(memory.watch()),
        ]
        await _until_served(client)
        before = [await requests_by_kind(config) for config in configs]
        start_cpu, load = cpu_seconds(pid), os.getloadavg()
        began = time.monotonic()
        await _create(client, number=number, server=address)
        created = time.monotonic() - began
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(target.deadline_seconds):
                await asyncio.gather(ready.complete.wait(), resolved.complete.wait())
        converged_cpu = cpu_seconds(pid)
        await asyncio.sleep(target.settle_seconds)
        settled_cpu, after = cpu_seconds(pid), [await requests_by_kind(config) for config in configs]
        await asyncio.sleep(target.rest_seconds)
        rested_cpu = cpu_seconds(pid)
        at_rest = [await requests_by_kind(config) for config in configs]
        for task in watchers:
            task.cancel()
    rest = max(target.rest_seconds, 1e-9)
    return {
        "load_average": [round(each, 1) for each in (*load, *os.getloadavg())],
        "seconds": {"created": round(created, 2), "ready": ready.report(began), "resolved": resolved.report(began)},
        "operator": {
            "cpu_seconds_start": round(start_cpu, 2),
            "cpu_seconds_until_all": round(converged_cpu - start_cpu, 2),
            "cpu_seconds_until_settled": round(settled_cpu - start_cpu, 2),
            "cpu_percent_at_rest": round(100 * (rested_cpu - settled_cpu) / rest, 2),
            "peak_rss_mib": round(memory.rss, 1),
            "peak_pss_mib": round(memory.pss, 1),
        },
        "requests_per_control_plane": {
            "management": _per_control_plane(before[0], after[0], number=number, own=own),
            "tenants": _per_control_plane(before[1], after[1], number=number, own=Counter()),
        },
        "requests_at_rest": {
            "management": sum((at_rest[0] - after[0]).values()),
            "tenants": sum((at_rest[1] - after[1]).values()),
        },
    }


async def _run(target: Target, *, directory: Path) -> Any:
    programs = resolve()
    async with (
        ProcessRuntime(directory / "runtime", programs=programs.directories) as runtime,
        contextlib.AsyncExitStack() as stack,
    ):
        management = await start_api_server(runtime, "management", directory=directory)
        tenants = await start_api_server(runtime, "tenants", directory=directory)
        async with Client(management.administrator(), field_manager="kplane") as client:
            await install(client, timeout_seconds=_READY_SECONDS)
        config = await stack.enter_async_context(shared_address(tenants.administrator(), directory=directory))
        operator = await stack.enter_async_context(
            _running(target, directory=directory, management=management, tenants=config, programs=programs.directories)
        )
        return await _measure(target, management=management, tenants=tenants, address=config.server, pid=operator.pid)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--control-planes", type=int, default=200, help="number of control planes at once")
    add("--repeat", type=int, default=1, help="number of runs, each with new programs")
    add("--deadline-seconds", type=float, default=300.0, help="time until all must be Ready")
    add("--settle-seconds", type=float, default=10.0, help="pause before the measurement at rest")
    add("--rest-seconds", type=float, default=60.0, help="duration of the measurement at rest")
    add(
        "--operator",
        default=_OPERATOR,
        help="command line of the operator, with {kubeconfig}, {cluster_kubeconfig}, {directory}, {programs}, {port}",
    )
    given = parser.parse_args()
    target = Target(
        given.control_planes, given.operator, given.deadline_seconds, given.settle_seconds, given.rest_seconds
    )
    runs = []
    for _ in range(given.repeat):
        with tempfile.TemporaryDirectory(prefix="kplane-benchmark-") as directory:
            runs.append(asyncio.run(_run(target, directory=Path(directory))))
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    json.dump({"machine": machine, "control_planes": target.control_planes, "runs": runs}, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
