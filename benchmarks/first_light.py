"""Measures the start and the memory of a control plane: `python -m benchmarks.first_light --control-planes 5`.

Runs an embedded management cluster with both operators. Creates control planes one by one, and then the same number at
once. Prints JSON: seconds from create to Ready, from a ready registration to the first object of the instance, and the
memory (PSS) of each process. All programs run on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.cost import Memory, memory_of
from benchmarks.kubeconfig import kubeconfig_of
from kplane.binaries.programs import resolve
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANES
from kplane.embedded.daemon import Daemon
from kplane.embedded.handle import Handle
from kplane.provider import Client, ClusterConfig, NotFound, ProviderError, Resource
from kplane.provider.client.resources import SERVICE_ACCOUNTS
from kplane.workloads import FILES, Component, File, Lifetime, ProcessRuntime, find_processes

_POLL_SECONDS: Final = 0.02
_DEADLINE_SECONDS: Final = 300.0
_CLASS: Final = "measured"


async def _until(client: Client, resource: Resource, name: str, *, accept: Any) -> dict[str, Any]:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while True:
        try:
            obj: dict[str, Any] = await client.get(resource, name)
            if accept(obj.get("status") or {}):
                return obj
        except NotFound:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"failed to wait for {resource.kind} {name}: not ready within {_DEADLINE_SECONDS} s")
        await asyncio.sleep(_POLL_SECONDS)


def _is_ready(status: dict[str, Any]) -> bool:
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in status.get("conditions") or ()
    )


async def _measure(client: Client, name: str) -> dict[str, float]:
    """Create a control plane, and wait for the first object of its instance."""
    began = time.monotonic()
    spec = {"classRef": {"name": _CLASS}}
    await client.create(CONTROL_PLANES, {"metadata": {"name": name}, "spec": spec})
    await _until(client, CONTROL_PLANES, name, accept=_is_ready)
    ready = time.monotonic()
    await _until(client, CONTROL_PLANE_REGISTRATIONS, name, accept=lambda status: status.get("ready") is True)
    registered = time.monotonic()
    async with Client(
        ClusterConfig.from_kubeconfig(await kubeconfig_of(client, name)), field_manager="kplane"
    ) as tenant:
        while True:
            try:
                await tenant.get(SERVICE_ACCOUNTS, "default", namespace="default")
                break
            except ProviderError:
                await asyncio.sleep(_POLL_SECONDS)
    written = time.monotonic()
    return {
        "create_to_ready": ready - began,
        "ready_to_registered": registered - ready,
        "registered_to_first_write": written - registered,
    }


def _memory(handle: Handle) -> dict[str, list[Memory]]:
    """Read the memory of each process, grouped by program."""
    memory: dict[str, list[Memory]] = {}
    for pid in find_processes(handle.directory):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        program = next(
            (
                arg.decode()
                for arg in arguments[1:3]
                if arg.startswith((b"kplane.controlplane_operator", b"kplane.mcm"))
            ),
            None,
        )
        name = program or Path(arguments[0].decode()).name
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        if str(handle.operator_directory).encode() in environment:
            name = f"tenant {name}"
        elif str(handle.mcm_directory).encode() in environment:
            name = f"instance {name}"
        memory.setdefault(name, []).append(memory_of(pid))
    return memory


@asynccontextmanager
async def _stock_instance(handle: Handle, tenant: bytes) -> AsyncIterator[int]:
    """Run a kube-controller-manager with default flags on a control plane, and yield its pid."""
    with tempfile.TemporaryDirectory(prefix="kplane-stock-") as directory:
        async with ProcessRuntime(Path(directory), programs=handle.programs) as runtime:
            address = await runtime.reserve("stock", ports=["https"])
            await runtime.apply(
                Component(
                    name="stock",
                    program="kube-controller-manager",
                    args=(f"--kubeconfig={FILES}/kubeconfig", f"--secure-port={address.ports['https']}"),
                    files={"kubeconfig": File(tenant)},
                    lifetime=Lifetime.BOUND,
                )
            )
            pid = runtime.state("stock").pid
            if pid is None:
                raise RuntimeError(runtime.state("stock").message)
            yield pid


def _summary(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "min": round(ordered[0], 3),
        "p50": round(statistics.median(ordered), 3),
        "max": round(ordered[-1], 3),
    }


def _summaries(runs: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {key: _summary([run[key] for run in runs]) for key in runs[0]}


async def _run(handle: Handle, *, number: int, settle_seconds: float) -> dict[str, Any]:
    async with Client(ClusterConfig.load(handle.admin_kubeconfig), field_manager="kplane") as client:
        await client.create(
            CONTROL_PLANE_CLASSES,
            {
                "metadata": {"name": _CLASS},
                "spec": {"deletionPolicy": "Destroy", "defaultServices": ["Controllers"]},
            },
        )
        one_by_one = [await _measure(client, f"one-{index}") for index in range(number)]
        at_once = await asyncio.gather(*(_measure(client, f"many-{index}") for index in range(number)))
        async with _stock_instance(handle, await kubeconfig_of(client, "one-0")) as stock:
            await asyncio.sleep(settle_seconds)
            memory = _memory(handle) | {"stock kube-controller-manager, default flags": [memory_of(stock)]}
        return {
            "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
            "start_seconds": {key: round(value, 2) for key, value in handle.seconds.items()},
            "control_planes": number,
            "one_by_one_seconds": _summaries(one_by_one),
            "at_once_seconds": _summaries(at_once),
            "settle_seconds": settle_seconds,
            "memory_mib": {
                name: {
                    "n": len(values),
                    "pss": _summary([pss for pss, _ in values]),
                    "anonymous": _summary([anonymous for _, anonymous in values]),
                }
                for name, values in sorted(memory.items())
            },
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--control-planes", type=int, default=5, help="number one by one, and again at once")
    parser.add_argument("--settle-seconds", type=float, default=20.0, help="idle time before the memory is read")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="kplane-benchmark-") as directory,
        Daemon(Path(directory), binaries=resolve()) as daemon,
    ):
        handle = daemon.wait_ready(timeout_seconds=120)
        result = asyncio.run(_run(handle, number=arguments.control_planes, settle_seconds=arguments.settle_seconds))
    json.dump(result, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
