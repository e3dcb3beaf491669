"""Measures the cost of a Lease for a control plane at rest: `python -m benchmarks.election`.

Runs an embedded management cluster with a virtual control plane. Runs kube-controller-manager there with profile
Nodeless: without a Lease, and with a Lease that is renewed every 20 s or every 2 s. Then renews the Lease of mcm many
times in a row, and measures the processor time of client and API server.

Prints JSON: requests in a minute, thousandths of a core at rest, and the cost of a renewal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.cost import cpu_seconds, memory_of, requests_by_kind
from benchmarks.kubeconfig import kubeconfig_of
from kplane.binaries.programs import resolve
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.embedded.daemon import Daemon
from kplane.embedded.handle import Handle
from kplane.mcm.describe.controllers import ENVIRONMENT
from kplane.mcm.describe.profiles import NODELESS
from kplane.mcm.instance.tenant_lease import Holder, TenantLease
from kplane.provider import Client, Cluster, ClusterConfig
from kplane.provider.client.resources import LEASES
from kplane.workloads import DATA, FILES, Component, File, Lifetime, ProcessRuntime, find_processes

_NAME: Final = "tenant"
_READY_SECONDS: Final = 240.0
_WAYS: Final = {
    "no Lease": ("--leader-elect=false",),
    "its own Lease, 60/40/20 s": (
        "--leader-elect-resource-name=slow",
        "--leader-elect-lease-duration=60s",
        "--leader-elect-renew-deadline=40s",
        "--leader-elect-retry-period=20s",
    ),
    "its own Lease, 15/10/2 s (default)": ("--leader-elect-resource-name=fast",),
}


async def _kubeconfig(handle: Handle) -> bytes:
    """Create the control plane, and return its kubeconfig when it is Ready."""
    async with Client(ClusterConfig.load(handle.admin_kubeconfig), field_manager="kplane") as client:
        await client.create(CONTROL_PLANES, {"metadata": {"name": _NAME}, "spec": {"deletionPolicy": "Destroy"}})
        async with asyncio.timeout(_READY_SECONDS):
            while True:
                status = (await client.get(CONTROL_PLANES, _NAME)).get("status") or {}
                conditions = status.get("conditions") or ()
                if any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions):
                    return await kubeconfig_of(client, _NAME)
                await asyncio.sleep(0.5)


def _api_server(handle: Handle) -> int:
    """Find the process of the control plane's API server."""
    for pid in find_processes(handle.directory):
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"kube-apiserver" in line and f"/{_NAME}".encode() in line:
            return pid
    raise LookupError(f"no kube-apiserver of {_NAME} in {handle.directory}")


async def _at_rest(
    runtime: ProcessRuntime,
    config: ClusterConfig,
    *,
    kubeconfig: bytes,
    flags: Sequence[str],
    api_server: int,
    seconds: float,
) -> dict[str, Any]:
    address = await runtime.reserve("instance", ports=["https"])
    component = Component(
        name="instance",
        program="kube-controller-manager",
        args=(
            f"--kubeconfig={FILES}/kubeconfig",
            f"--secure-port={address.ports['https']}",
            f"--cert-dir={DATA}/certificates",
            "--profiling=false",
            f"--controllers={','.join(NODELESS)}",
            *flags,
        ),
        files={"kubeconfig": File(kubeconfig)},
        env=ENVIRONMENT,
        data=True,
        lifetime=Lifetime.BOUND,
    )
    await runtime.apply(component)
    await asyncio.sleep(30.0)  # until the caches are synced and the first writes are done
    pid = runtime.state("instance").pid
    if pid is None:
        raise RuntimeError("kube-controller-manager does not run")
    before, cpu = await requests_by_kind(config), {process: cpu_seconds(process) for process in (pid, api_server)}
    await asyncio.sleep(seconds)
    after = await requests_by_kind(config)
    cpu_used = {process: cpu_seconds(process) - cpu[process] for process in cpu}
    minute = 60 / seconds
    figures = {
        "requests_in_a_minute": round(sum((after - before).values()) * minute, 1),
        "writes_of_leases_in_a_minute": round(((after - before)["PUT leases"]) * minute, 1),
        "thousandths_of_a_core": round(1000 * cpu_used[pid] / seconds, 2),
        "thousandths_of_a_core_of_its_api_server": round(1000 * cpu_used[api_server] / seconds, 2),
        "anonymous_mib": round(memory_of(pid).anonymous, 1),
    }
    await runtime.stop("instance")
    return figures


async def _renewals(config: ClusterConfig, *, api_server: int, count: int) -> dict[str, float]:
    """Measure a renewal by mcm and a read of the Lease, as means of `count` requests."""
    cluster = Cluster(_NAME, config=config)
    holder = Holder(name="benchmark", fleet=None, uid=lambda _: None)
    lease = TenantLease(cluster, program="kube-controller-manager", holder=holder)
    async with Client(config, field_manager="kplane") as client:

        async def renew() -> None:
            if (blocking := await lease.acquire(config)) is not None:
                raise RuntimeError(blocking.message)

        async def read() -> None:
            await client.get(LEASES, "kube-controller-manager", namespace="kube-system")

        figures = {}
        for operation, act in (("renewal", renew), ("read", read)):
            await act()
            cpu, api_server_cpu, began = time.process_time(), cpu_seconds(api_server), time.monotonic()
            for _ in range(count):
                await act()
            figures[f"milliseconds_of_a_{operation}"] = round(1000 * (time.monotonic() - began) / count, 2)
            figures[f"processor_milliseconds_of_a_{operation}"] = round(1000 * (time.process_time() - cpu) / count, 3)
            api_server_cpu = 1000 * (cpu_seconds(api_server) - api_server_cpu) / count
            figures[f"processor_milliseconds_of_the_api_server_for_a_{operation}"] = round(api_server_cpu, 3)
    await lease.release()
    return figures


async def _run(handle: Handle, *, directory: Path, seconds: float, count: int) -> dict[str, Any]:
    kubeconfig = await _kubeconfig(handle)
    config, api_server = ClusterConfig.from_kubeconfig(kubeconfig), _api_server(handle)
    async with ProcessRuntime(directory, programs=handle.programs) as runtime:
        ways = {
            way: await _at_rest(
                runtime, config, kubeconfig=kubeconfig, flags=flags, api_server=api_server, seconds=seconds
            )
            for way, flags in _WAYS.items()
        }
    return {
        "load_average": round(os.getloadavg()[0], 1),
        "at_rest": ways,
        "mcm": await _renewals(config, api_server=api_server, count=count),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rest-seconds", type=float, default=120.0, help="duration of a measurement (default: 120)")
    parser.add_argument("--renewals", type=int, default=1000, help="number of measured renewals (default: 1000)")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="kplane-benchmark-") as directory,
        tempfile.TemporaryDirectory(prefix="kplane-benchmark-") as beside,
        Daemon(Path(directory), binaries=resolve(), fsync=False) as daemon,
    ):
        handle = daemon.wait_ready(timeout_seconds=_READY_SECONDS)
        result = asyncio.run(_run(handle, directory=Path(beside), seconds=given.rest_seconds, count=given.renewals))
    json.dump(result, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
