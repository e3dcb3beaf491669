"""How many control planes mcm serves on a machine: `python -m benchmarks.density --control-planes 10`.

Runs an embedded management cluster with both operators in a temporary directory, and N virtual control planes on its
one shared etcd, each with an API server of its own. Then, one after the other: mcm without clusters; registrations
created one by one, each followed until its instance has written; all instances at rest with each profile; and, with
mcm's instances ended, N instances of kube-controller-manager with default flags on the same control planes. Prints
JSON: memory (PSS, and what a process has alone) and processor time for each instance, mcm's own, and the ratio to stock
instances. Everything runs on this machine, so its load counts, and is noted.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
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

from api import ControllersProfile, ControlPlane, ControlPlaneRegistration, ResourceModel
from api.names import kubeconfig_secret_name, management_namespace
from benchmarks.cost import cpu_seconds, memory_of
from embedded.daemon import Daemon
from embedded.handle import Handle
from provider import SECRETS, SERVICE_ACCOUNTS, Client, ClusterConfig, Reflector, Resource
from tools.binaries import resolve
from workloads import DATA, FILES, Component, File, Lifetime, ProcessRuntime, find_processes

_POLL_SECONDS: Final = 0.2
_DEADLINE_SECONDS: Final = 300.0
_START_SECONDS: Final = 240.0
_AT_ONCE: Final = 2
"""Control planes that start at the same time: what makes them ready is processor time."""
_STOCK: Final = "Stock"


@dataclass(frozen=True, slots=True)
class Target:
    """What is measured, and how long."""

    control_planes: int
    profiles: tuple[ControllersProfile, ...]
    settle_seconds: float
    rest_seconds: float

    @property
    def names(self) -> list[str]:
        """Of the control planes and of their registrations."""
        return [f"tenant-{index:03d}" for index in range(self.control_planes)]


def _resource(model: type[ResourceModel]) -> Resource:
    info = model.resource
    return Resource(info.api_version, info.kind, info.plural, namespaced=False)


_CONTROL_PLANES: Final = _resource(ControlPlane)
_REGISTRATIONS: Final = _resource(ControlPlaneRegistration)


async def _until(what: str, probe: Callable[[], Awaitable[bool]]) -> None:
    try:
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while not await probe():  # noqa: ASYNC110 - a few times in a run
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise TimeoutError(f"{what}: not within {_DEADLINE_SECONDS:.0f} s") from None


async def _create_control_planes(client: Client, names: Sequence[str]) -> dict[str, bytes]:
    """Create them, and return their kubeconfigs when all are ready."""
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def create(name: str) -> bytes:
        async def ready() -> bool:
            status = (await client.get(_CONTROL_PLANES, name)).get("status") or {}
            conditions = status.get("conditions") or ()
            return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

        async with at_once:
            spec = {"deletionPolicy": "Destroy"}
            await client.create(_CONTROL_PLANES, {"metadata": {"name": name}, "spec": spec})
            await _until(f"ControlPlane {name} is Ready", ready)
        secret = await client.get(SECRETS, kubeconfig_secret_name(name), namespace=management_namespace(name))
        return base64.b64decode(secret["data"]["kubeconfig"])

    return dict(zip(names, await asyncio.gather(*map(create, names)), strict=True))


@contextlib.asynccontextmanager
async def _first(
    client: Client, resource: Resource, *, accept: Any, name: str | None = None, namespace: str | None = None
) -> AsyncIterator[asyncio.Future[float]]:
    """Watch within for an object that is accepted, and give when it was seen, in seconds of the monotonic clock."""
    seen: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def look(event: str, obj: dict[str, Any]) -> None:
        if event != "DELETED" and not seen.done() and accept(obj):
            seen.set_result(time.monotonic())

    task = asyncio.create_task(Reflector(client, resource, name=name, namespace=namespace).run(look))
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _register(client: Client, name: str, *, kubeconfig: bytes, profile: str) -> float:
    """Create a registration; returns the seconds from its being ready to the first object that its instance wrote."""

    def is_ready(obj: dict[str, Any]) -> bool:
        return (obj.get("status") or {}).get("ready") is True

    def is_default(obj: dict[str, Any]) -> bool:
        return bool(obj["metadata"]["name"] == "default")

    async with (
        Client(ClusterConfig.from_kubeconfig(kubeconfig)) as tenant,
        _first(client, _REGISTRATIONS, accept=is_ready, name=name) as ready,
        _first(tenant, SERVICE_ACCOUNTS, accept=is_default, namespace="default") as written,
        asyncio.timeout(_DEADLINE_SECONDS),
    ):
        spec = {"controlPlaneRef": {"name": name}, "services": ["Controllers"], "controllers": {"profile": profile}}
        await client.create(_REGISTRATIONS, {"metadata": {"name": name}, "spec": spec})
        return await written - await ready


def _instances(handle: Handle) -> dict[str, dict[str, Any]]:
    """What mcm says of each cluster."""
    with urllib.request.urlopen(f"{handle.mcm_url}/clusters", timeout=10.0) as answer:  # noqa: S310 - it is http
        found: dict[str, dict[str, Any]] = json.load(answer)["clusters"]
    return found


async def _switch(client: Client, handle: Handle, names: Sequence[str], *, profile: str) -> None:
    """Have all instances run with a profile, and return when they do."""
    body = {"spec": {"controllers": {"profile": profile}}}
    for name in names:
        await client.patch(_REGISTRATIONS, name, body)

    async def done() -> bool:
        found = await asyncio.to_thread(_instances, handle)
        return all(
            name in found and found[name]["state"] == "Ready" and found[name]["profile"] == profile for name in names
        )

    await _until(f"all instances run with profile {profile}", done)


async def _unregister(client: Client, handle: Handle, names: Sequence[str]) -> None:
    for name in names:
        await client.delete(_REGISTRATIONS, name)

    async def done() -> bool:
        return not await asyncio.to_thread(_instances, handle)

    await _until("all instances have ended", done)


def _mcm_pids(handle: Handle) -> list[int]:
    """Processes of mcm itself, without its instances."""
    found = []
    for pid in find_processes(handle.directory):
        with contextlib.suppress(FileNotFoundError):
            if b"mcm.main" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append(pid)
    return found


@contextlib.asynccontextmanager
async def _stock_instances(handle: Handle, kubeconfigs: Mapping[str, bytes]) -> AsyncIterator[list[int]]:
    """Run kube-controller-manager with default flags for each control plane; gives the pids."""
    with tempfile.TemporaryDirectory(prefix="kplane-stock-") as directory:
        async with ProcessRuntime(Path(directory), programs=handle.programs) as runtime:
            for name, kubeconfig in kubeconfigs.items():
                address = await runtime.reserve(name, ports=["https"])
                port = f"--secure-port={address.ports['https']}"
                component = Component(
                    name=name,
                    program="kube-controller-manager",
                    args=(f"--kubeconfig={FILES}/kubeconfig", port, f"--cert-dir={DATA}/certificates"),
                    files={"kubeconfig": File(kubeconfig)},
                    data=True,
                    lifetime=Lifetime.BOUND,
                )
                await runtime.apply(component)
            pids = [pid for name in kubeconfigs if (pid := runtime.state(name).pid) is not None]
            if len(pids) < len(kubeconfigs):
                raise RuntimeError("not every stock instance runs")
            yield pids


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
    """Let them come to rest, and measure: memory at the end, processor time for each second of the rest."""
    await asyncio.sleep(target.settle_seconds)
    everybody = {*pids, *mcm}
    before = {pid: cpu_seconds(pid) for pid in everybody}
    await asyncio.sleep(target.rest_seconds)
    cpu = {pid: 1000 * (cpu_seconds(pid) - before[pid]) / target.rest_seconds for pid in everybody}
    memory = {pid: memory_of(pid) for pid in everybody}
    found: dict[str, Any] = {
        "load_average": round(os.getloadavg()[0], 1),
        "mcm": {
            "pss_mib": round(sum(memory[pid].pss for pid in mcm), 1),
            "anonymous_mib": round(sum(memory[pid].anonymous for pid in mcm), 1),
            "cpu_thousandths_of_a_core": round(sum(cpu[pid] for pid in mcm), 2),
        },
    }
    if pids:
        found["instances"] = {
            "n": len(pids),
            "pss_mib": _summary([memory[pid].pss for pid in pids]),
            "anonymous_mib": _summary([memory[pid].anonymous for pid in pids]),
            "cpu_thousandths_of_a_core": _summary([cpu[pid] for pid in pids]),
        }
    return found


def _ratios(found: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Means of each profile, in parts of those of stock instances."""
    stock = found[_STOCK]["instances"]
    return {
        profile: {
            what: round(phase["instances"][what]["mean"] / max(stock[what]["mean"], 1e-9), 3)
            for what in ("pss_mib", "anonymous_mib", "cpu_thousandths_of_a_core")
        }
        for profile, phase in found.items()
        if profile != _STOCK
    }


async def _run(target: Target, handle: Handle) -> dict[str, Any]:
    names, mcm = target.names, _mcm_pids(handle)
    async with Client(ClusterConfig.load(handle.admin_kubeconfig)) as client:
        kubeconfigs = await _create_control_planes(client, names)
        alone = await _at_rest(target, (), mcm=mcm)
        first = target.profiles[0]
        seconds = [await _register(client, name, kubeconfig=kubeconfigs[name], profile=first) for name in names]
        phases: dict[str, Any] = {}
        for profile in target.profiles:
            await _switch(client, handle, names, profile=profile)
            instances = await asyncio.to_thread(_instances, handle)
            phases[profile] = await _at_rest(target, [instances[name]["pid"] for name in names], mcm=mcm)
        await _unregister(client, handle, names)
        async with _stock_instances(handle, kubeconfigs) as pids:
            phases[_STOCK] = await _at_rest(target, pids, mcm=mcm)
    return {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        "control_planes": target.control_planes,
        "api_servers": target.control_planes,
        "registered_to_first_write_seconds": {"profile": first, **_summary(seconds)},
        "mcm_without_clusters": alone["mcm"],
        "at_rest": phases,
        "of_stock": _ratios(phases),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--control-planes", type=int, default=10, help="how many; each takes about 200 MiB with all that it needs")
    add("--settle-seconds", type=float, default=30.0, help="between a change and the rest")
    add("--rest-seconds", type=float, default=30.0, help="so long processor time is measured")
    add("--profile", action="append", choices=[str(each) for each in ControllersProfile], help="default: all of them")
    given = parser.parse_args()
    if given.control_planes < 1:
        parser.error("--control-planes has to be 1 or more")
    profiles = tuple(ControllersProfile(each) for each in given.profile or ControllersProfile)
    target = Target(given.control_planes, profiles, given.settle_seconds, given.rest_seconds)
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
