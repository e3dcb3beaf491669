"""Measures how many control planes mcm serves: `python -m benchmarks.density --control-planes 10 30 60`.

Runs an embedded management cluster with both operators, and virtual control planes on its shared etcd. Each has an API
server of 175 MiB and a single registration: the operator refuses a second registration for the same service. All API
servers run from the first run to the last run.

Measures mcm without clusters first, then for each N:
1. all instances at rest, with each profile;
2. the time from a registration to the first write of its instance, in an additional control plane;
3. N instances of kube-controller-manager with default flags on the same control planes.

Prints JSON: memory (PSS and anonymous) and processor time of each instance and of mcm, and the ratio to stock
instances. All programs run on this machine, so the result includes its load.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.cost import cpu_seconds, memory_of
from benchmarks.kubeconfig import kubeconfig_of
from kplane.api import ControllersProfile
from kplane.api.reasons import Reason
from kplane.binaries.programs import resolve
from kplane.controlplane_operator.kinds import CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANES
from kplane.embedded.components import AWAKE_INOTIFY_INSTANCES, START_INOTIFY_INSTANCES
from kplane.embedded.daemon import Daemon
from kplane.embedded.handle import Handle
from kplane.provider import Client, ClusterConfig, Event, Informer, Resource
from kplane.provider.client.resources import LEASES, NAMESPACES, SERVICE_ACCOUNTS
from kplane.workloads import (
    DATA,
    FILES,
    Component,
    File,
    Lifetime,
    ProcessRuntime,
    find_processes,
    inotify_shortage,
)

_POLL_SECONDS: Final = 0.2
_DEADLINE_SECONDS: Final = 300.0
_START_SECONDS: Final = 240.0
_AT_ONCE: Final = 2
"""Number of programs that start at the same time. Each start needs processor time."""
_STOCK: Final = "Stock"
_SAMPLED: Final = "sampled"
"""Control plane and registration for the measurement of first writes."""


@dataclass(frozen=True, slots=True)
class Target:
    """Holds the options of a measurement."""

    control_planes: tuple[int, ...]
    profiles: tuple[ControllersProfile, ...]
    samples: int
    settle_seconds: float
    rest_seconds: float

    @property
    def names(self) -> list[str]:
        """Names of the control planes of the largest run. A smaller run uses the first of them."""
        return [f"tenant-{index:03d}" for index in range(max(self.control_planes))]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Holds the running programs of a measurement."""

    client: Client
    handle: Handle
    mcm: Sequence[int]
    """Processes of mcm without its instances."""
    kubeconfigs: Mapping[str, bytes]
    """Kubeconfig by control plane."""


async def _until(what: str, probe: Callable[[], Awaitable[bool]]) -> None:
    try:
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while not await probe():  # noqa: ASYNC110 - a few times in a run
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise TimeoutError(f"failed to wait for {what}: not within {_DEADLINE_SECONDS:.0f} s") from None


async def _create_control_planes(client: Client, names: Sequence[str]) -> dict[str, bytes]:
    """Create control planes, and return their kubeconfigs when all are Ready."""
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def create(name: str) -> bytes:
        async def ready() -> bool:
            status = (await client.get(CONTROL_PLANES, name)).get("status") or {}
            conditions = status.get("conditions") or ()
            return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

        async with at_once:
            spec = {"deletionPolicy": "Destroy"}
            await client.create(CONTROL_PLANES, {"metadata": {"name": name}, "spec": spec})
            await _until(f"ControlPlane {name} is Ready", ready)
        return await kubeconfig_of(client, name)

    return dict(zip(names, await asyncio.gather(*map(create, names)), strict=True))


@contextlib.asynccontextmanager
async def _first(
    client: Client, resource: Resource, *, accept: Any, name: str | None = None, namespace: str | None = None
) -> AsyncIterator[asyncio.Future[float]]:
    """Watch for an accepted object within the context. Yields the time of its event, on the monotonic clock."""
    seen_at: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def look(event: Event) -> None:
        if event.kind != "DELETED" and not seen_at.done() and accept(event.object):
            seen_at.set_result(time.monotonic())

    task = asyncio.create_task(Informer(client, resource, name=name, namespace=namespace).run(look))
    try:
        yield seen_at
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _register(client: Client, names: Collection[str], *, profile: str) -> None:
    """Create a registration for each of these control planes."""
    for name in names:
        spec = {
            "controlPlaneRef": {"name": name},
            "services": ["Controllers"],
            "controllers": {"profile": profile},
        }
        await client.create(CONTROL_PLANE_REGISTRATIONS, {"metadata": {"name": name}, "spec": spec})


async def _accepted(client: Client, names: Collection[str]) -> None:
    """Wait until these registrations are ready.

    Raises RuntimeError with the reasons if the operator refuses any: such a set-up is not measured.
    """

    async def ready() -> bool:
        registrations = (await client.list(CONTROL_PLANE_REGISTRATIONS)).items
        statuses = {
            registration["metadata"]["name"]: registration.get("status") or {} for registration in registrations
        }
        if refused := _refused({name: statuses.get(name, {}) for name in names}):
            raise RuntimeError(f"the operator refuses registrations: {'; '.join(refused)}")
        return all(statuses.get(name, {}).get("ready") is True for name in names)

    await _until("all registrations are ready", ready)


def _refused(statuses: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a message for each registration whose service another registration holds."""
    return [
        f"{name}: {condition['message']}"
        for name, status in statuses.items()
        for condition in status.get("conditions") or ()
        if condition["type"] == "Ready" and condition["reason"] == Reason.SERVICE_TAKEN
    ]


async def _first_writes(target: Target, fleet: Fleet, *, profile: str) -> list[float]:
    """Measure the seconds from a ready registration to the first object of its instance."""
    config = ClusterConfig.from_kubeconfig(fleet.kubeconfigs[_SAMPLED])
    seconds = []
    async with Client(config, field_manager="kplane") as tenant:
        for _ in range(target.samples):
            # Only controllers create the ServiceAccount of a namespace, so it is the first write of the instance.
            namespace = await tenant.create(NAMESPACES, {"metadata": {"generateName": "sample-"}})
            seconds.append(await _first_write(fleet, tenant, profile=profile, namespace=namespace["metadata"]["name"]))
            await _unregister(fleet, [_SAMPLED])
    return seconds


async def _first_write(fleet: Fleet, tenant: Client, *, profile: str, namespace: str) -> float:
    def is_ready(obj: dict[str, Any]) -> bool:
        return (obj.get("status") or {}).get("ready") is True

    def is_default(obj: dict[str, Any]) -> bool:
        return bool(obj["metadata"]["name"] == "default")

    async with (
        _first(fleet.client, CONTROL_PLANE_REGISTRATIONS, accept=is_ready, name=_SAMPLED) as ready,
        _first(tenant, SERVICE_ACCOUNTS, accept=is_default, namespace=namespace) as written,
        asyncio.timeout(_DEADLINE_SECONDS),
    ):
        await _register(fleet.client, [_SAMPLED], profile=profile)
        return await written - await ready


def _instances(handle: Handle) -> dict[str, dict[str, Any]]:
    """Read mcm's report of each cluster."""
    with urllib.request.urlopen(f"{handle.mcm_url}/clusters", timeout=10.0) as answer:  # noqa: S310 - it is http
        clusters: dict[str, dict[str, Any]] = json.load(answer)["clusters"]
    return clusters


async def _switch(fleet: Fleet, names: Collection[str], *, profile: str) -> list[int]:
    """Switch all instances to a profile, and return their pids when they run with it."""
    body = {"spec": {"controllers": {"profile": profile}}}
    for name in names:
        await fleet.client.patch(CONTROL_PLANE_REGISTRATIONS, name, body)
    pids: list[int] = []

    async def done() -> bool:
        instances = await asyncio.to_thread(_instances, fleet.handle)
        matching_pids = [
            instances[name]["pid"] for name in names if name in instances and _runs(instances[name], profile=profile)
        ]
        pids[:] = matching_pids
        return len(matching_pids) == len(names)

    await _until(f"all instances run with profile {profile}", done)
    return pids


def _runs(found: Mapping[str, Any], *, profile: str) -> bool:
    return bool(found["state"] == "Ready" and found["profile"] == profile)


async def _unregister(fleet: Fleet, names: Collection[str]) -> None:
    for name in names:
        await fleet.client.delete(CONTROL_PLANE_REGISTRATIONS, name)

    async def done() -> bool:
        remaining = await asyncio.to_thread(_instances, fleet.handle)
        registrations = (await fleet.client.list(CONTROL_PLANE_REGISTRATIONS)).items
        return not remaining.keys() & set(names) and all(
            registration["metadata"]["name"] not in names for registration in registrations
        )

    await _until("the instances have ended", done)


def _mcm_pids(handle: Handle) -> list[int]:
    """Find the processes of mcm without its instances."""
    pids = []
    for pid in find_processes(handle.directory):
        with contextlib.suppress(FileNotFoundError):
            if b"kplane.mcm.main" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                pids.append(pid)
    return pids


@contextlib.asynccontextmanager
async def _stock_instances(fleet: Fleet, names: Collection[str]) -> AsyncIterator[list[int]]:
    """Run a kube-controller-manager with default flags for each control plane, and yield the pids of all leaders."""
    at_once = asyncio.Semaphore(_AT_ONCE)
    with tempfile.TemporaryDirectory(prefix="kplane-stock-") as directory:
        async with ProcessRuntime(Path(directory), programs=fleet.handle.programs) as runtime:

            async def start(name: str) -> int:
                # No other run uses this Lease name, so the election does not wait for an old holder.
                kubeconfig, lease = fleet.kubeconfigs[name], f"{name}-{len(names)}"
                address = await runtime.reserve(name, ports=["https"])
                flags = (
                    f"--kubeconfig={FILES}/kubeconfig",
                    f"--secure-port={address.ports['https']}",
                    f"--cert-dir={DATA}/certificates",
                    f"--leader-elect-resource-name={lease}",
                )
                component = Component(
                    name=name,
                    program="kube-controller-manager",
                    args=flags,
                    files={"kubeconfig": File(kubeconfig)},
                    data=True,
                    lifetime=Lifetime.BOUND,
                )
                async with at_once, Client(ClusterConfig.from_kubeconfig(kubeconfig), field_manager="kplane") as tenant:
                    await runtime.apply(component)
                    await _until(
                        f"stock instance {name} leads", lambda: tenant.exists(LEASES, lease, namespace="kube-system")
                    )
                pid = runtime.state(name).pid
                if pid is None:
                    raise RuntimeError(f"stock instance {name} does not run")
                return pid

            yield list(await asyncio.gather(*map(start, names)))


def _summary(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    last = len(ordered) - 1
    return {
        "min": round(ordered[0], 2),
        "p50": round(statistics.median(ordered), 2),
        "p99": round(ordered[round(0.99 * last)], 2),
        "max": round(ordered[last], 2),
        "mean": round(statistics.fmean(ordered), 2),
    }


async def _at_rest(target: Target, pids: Collection[int], *, mcm: Collection[int]) -> dict[str, Any]:
    """Wait until the processes are at rest. Then measure processor time per second, and memory at the end."""
    await asyncio.sleep(target.settle_seconds)
    all_pids = {*pids, *mcm}
    before = {pid: cpu_seconds(pid) for pid in all_pids}
    await asyncio.sleep(target.rest_seconds)
    cpu = {pid: 1000 * (cpu_seconds(pid) - before[pid]) / target.rest_seconds for pid in all_pids}
    memory = {pid: memory_of(pid) for pid in all_pids}
    report: dict[str, Any] = {
        "load_average": round(os.getloadavg()[0], 1),
        "mcm": {
            "pss_mib": round(sum(memory[pid].pss for pid in mcm), 1),
            "anonymous_mib": round(sum(memory[pid].anonymous for pid in mcm), 1),
            "cpu_thousandths_of_a_core": round(sum(cpu[pid] for pid in mcm), 2),
        },
    }
    if pids:
        report["instances"] = {
            "n": len(pids),
            "pss_mib": _summary([memory[pid].pss for pid in pids]),
            "anonymous_mib": _summary([memory[pid].anonymous for pid in pids]),
            "cpu_thousandths_of_a_core": _summary([cpu[pid] for pid in pids]),
        }
    return report


def _ratios(found: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the means of each profile, divided by the means of stock instances."""
    stock = found[_STOCK]["instances"]
    return {
        profile: {
            metric: round(phase["instances"][metric]["mean"] / max(stock[metric]["mean"], 1e-9), 3)
            for metric in ("pss_mib", "anonymous_mib", "cpu_thousandths_of_a_core")
        }
        for profile, phase in found.items()
        if profile != _STOCK
    }


async def _measure(target: Target, fleet: Fleet, *, control_planes: int) -> dict[str, Any]:
    """Measure with this number of control planes, and delete their registrations."""
    names = target.names[:control_planes]
    first = target.profiles[0]
    await _register(fleet.client, names, profile=first)
    await _accepted(fleet.client, names)
    phases: dict[str, Any] = {}
    for profile in target.profiles:
        pids = await _switch(fleet, names, profile=profile)
        phases[profile] = await _at_rest(target, pids, mcm=fleet.mcm)
    seconds = await _first_writes(target, fleet, profile=first)
    await _unregister(fleet, names)
    async with _stock_instances(fleet, names) as pids:
        phases[_STOCK] = await _at_rest(target, pids, mcm=fleet.mcm)
    return {
        "control_planes": control_planes,
        "registered_to_first_write_seconds": {"profile": first, "n": len(seconds), **_summary(seconds)},
        "at_rest": phases,
        "of_stock": _ratios(phases),
    }


async def _run(target: Target, handle: Handle) -> dict[str, Any]:
    async with Client(ClusterConfig.load(handle.admin_kubeconfig), field_manager="kplane") as client:
        kubeconfigs = await _create_control_planes(client, [*target.names, _SAMPLED])
        fleet = Fleet(client, handle, _mcm_pids(handle), kubeconfigs)
        baseline = await _at_rest(target, (), mcm=fleet.mcm)
        runs = [await _measure(target, fleet, control_planes=number) for number in target.control_planes]
    return {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        "mcm_without_clusters": baseline["mcm"],
        "runs": runs,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    text = "numbers of control planes, one run for each (default: 10)"
    add("--control-planes", type=int, nargs="+", default=[10], metavar="N", help=text)
    add("--samples", type=int, default=15, help="number of measured first writes in each run (default: 15)")
    add("--settle-seconds", type=float, default=30.0, help="pause after a change (default: 30)")
    add("--rest-seconds", type=float, default=30.0, help="duration of a measurement at rest (default: 30)")
    add(
        "--profile",
        action="append",
        choices=[str(profile) for profile in ControllersProfile],
        help="default: all profiles",
    )
    given = parser.parse_args()
    if min(*given.control_planes, given.samples) < 1:
        parser.error("--control-planes and --samples must be 1 or more")
    needed = START_INOTIFY_INSTANCES + (max(given.control_planes) + 1) * AWAKE_INOTIFY_INSTANCES
    if shortage := inotify_shortage(needed):
        parser.error(shortage)
    profiles = tuple(ControllersProfile(profile) for profile in given.profile or ControllersProfile)
    target = Target(
        control_planes=tuple(given.control_planes),
        profiles=profiles,
        samples=given.samples,
        settle_seconds=given.settle_seconds,
        rest_seconds=given.rest_seconds,
    )
    with (
        tempfile.TemporaryDirectory(prefix="kplane-benchmark-") as directory,
        Daemon(Path(directory), binaries=resolve(), fsync=False) as daemon,
    ):
        handle = daemon.wait_ready(timeout_seconds=_START_SECONDS)
        result = asyncio.run(_run(target, handle))
    json.dump(result, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
