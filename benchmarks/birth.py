"""Measures the start of control planes: `python -m benchmarks.birth --rounds 10`.

Starts an etcd. Then starts API servers in turns: on an empty prefix, and on a copy of a template. Prints JSON: seconds
until the API server is ready, the processor time of API server and etcd until then, and the cost of a copy.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks.cost import cpu_seconds
from kplane.binaries.programs import resolve
from kplane.components.api_server import API_SERVER_PORTS, api_server_component, serving_hosts
from kplane.components.etcd import ETCD_PORTS, EtcdAccess, client_url, etcd_component
from kplane.data import Client, Credentials, Original, Owner, Template, claim, clone
from kplane.pki.authorities import TenantAuthorities, TenantCertificates
from kplane.pki.primitives import KeyPair, create_authority, issue_client, issue_serving
from kplane.workloads import Component, Phase, ProcessRuntime

_ETCD: Final = "etcd"
_API_SERVER: Final = "apiserver"
_STILL_SECONDS: Final = 5.0
_DEADLINE_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class _Etcd:
    url: str
    authority: KeyPair
    client: Client


async def _ready(runtime: ProcessRuntime, component: Component) -> None:
    changed = asyncio.Event()
    unsubscribe = runtime.subscribe(lambda name: changed.set() if name == component.name else None)
    try:
        await runtime.apply(component)
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while runtime.state(component.name).phase is not Phase.READY:
                await changed.wait()
                changed.clear()
    finally:
        unsubscribe()


async def _start_etcd(runtime: ProcessRuntime, directory: Path) -> _Etcd:
    authority = create_authority("etcd")
    address = await runtime.reserve(_ETCD, ports=ETCD_PORTS)
    server = issue_serving(authority, common_name="etcd", hosts=[address.host], client=True)
    await _ready(runtime, etcd_component(_ETCD, address=address, ca=authority.certificate, server=server))
    files, pair = Credentials.in_directory(directory), issue_client(authority, user="root")
    for path, content in (
        (files.ca, authority.certificate),
        (files.certificate, pair.certificate),
        (files.key, pair.key),
    ):
        path.touch(mode=0o600)
        path.write_bytes(content)
    return _Etcd(client_url(address), authority, Client(client_url(address), credentials=files))


async def _start(runtime: ProcessRuntime, etcd: _Etcd, *, prefix: str) -> None:
    """Start an API server, and return when it is ready."""
    address = await runtime.reserve(_API_SERVER, ports=API_SERVER_PORTS)
    authorities = TenantAuthorities.create("birth")
    certificates = TenantCertificates.renewed(
        None,
        authorities=authorities,
        hosts=serving_hosts(address),
        etcd_authority=etcd.authority,
        etcd_user="root",
        controllers_user="controllers",
        now=datetime.now(UTC),
    )
    component = api_server_component(
        _API_SERVER,
        address=address,
        authorities=authorities,
        certificates=certificates,
        etcd=EtcdAccess((etcd.url,), etcd.authority.certificate, certificates.etcd_client),
        etcd_prefix=prefix.rstrip("/"),
        etcd_shared=True,
    )
    await _ready(runtime, component)


async def _template(runtime: ProcessRuntime, etcd: _Etcd) -> Original:
    await _start(runtime, etcd, prefix="/template/")
    await asyncio.sleep(_STILL_SECONDS)
    await runtime.delete(_API_SERVER)
    return Original.of(await Template.read(etcd.client, "/template/"))


async def _round(
    runtime: ProcessRuntime, etcd: _Etcd, *, prefix: str, original: Original | None, pid: Callable[[str], int]
) -> dict[str, float]:
    owner, copy_seconds = Owner(prefix), 0.0
    before, began = cpu_seconds(pid(_ETCD)), time.perf_counter()
    if original is not None:
        await claim(etcd.client, prefix, owner=owner)
        if not await clone(etcd.client, original, prefix, owner=owner):
            raise RuntimeError(f"{prefix} has keys")
        copy_seconds = time.perf_counter() - began
    await _start(runtime, etcd, prefix=prefix)
    seconds = time.perf_counter() - began
    usage = {"api_server": cpu_seconds(pid(_API_SERVER)), "etcd": cpu_seconds(pid(_ETCD)) - before}
    await runtime.delete(_API_SERVER)
    return {
        "seconds": seconds,
        "copy_seconds": copy_seconds,
        **{f"{name}_cpu_seconds": cpu for name, cpu in usage.items()},
    }


async def _measure(rounds: int, *, copies: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="kplane-birth-") as directory:
        async with ProcessRuntime(Path(directory) / "runtime", programs=resolve().directories) as runtime:
            etcd = await _start_etcd(runtime, Path(directory))

            def pid(name: str) -> int:
                process_id = runtime.state(name).pid
                if process_id is None:
                    raise RuntimeError(f"{name} does not run")
                return process_id

            try:
                original = await _template(runtime, etcd)
                ways = {"bootstrapped": None, "copied": original}
                results: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
                for number in range(rounds):
                    for way, source in ways.items():
                        prefix = f"/{way}/{number}/"
                        results[way].append(await _round(runtime, etcd, prefix=prefix, original=source, pid=pid))
                return {
                    **{way: _medians(measurements) for way, measurements in results.items()},
                    "copies": await _copies(etcd, original, number=copies, pid=pid),
                }
            finally:
                await etcd.client.close()
                for name in (_API_SERVER, _ETCD):
                    await runtime.delete(name)


async def _copies(etcd: _Etcd, original: Original, *, number: int, pid: Callable[[str], int]) -> dict[str, float]:
    """Copy the template `number` times in sequence, without an API server."""
    etcd_cpu, own_cpu, began = cpu_seconds(pid(_ETCD)), time.process_time(), time.perf_counter()
    for index in range(number):
        prefix = f"/many/{index}/"
        await claim(etcd.client, prefix, owner=Owner(prefix))
        await clone(etcd.client, original, prefix, owner=Owner(prefix))
    seconds = time.perf_counter() - began
    return {
        "number": number,
        "seconds_each": round(seconds / number, 4),
        "own_cpu_seconds_each": round((time.process_time() - own_cpu) / number, 4),
        "etcd_cpu_seconds_each": round((cpu_seconds(pid(_ETCD)) - etcd_cpu) / number, 4),
    }


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(measurement[name] for measurement in rounds), 3) for name in rounds[0]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.birth", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="starts of each kind (default: %(default)s)")
    parser.add_argument("--copies", type=int, default=100, help="copies without a start (default: %(default)s)")
    given = parser.parse_args(arguments)
    machine = {"cpus": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version()}
    json.dump({"machine": machine, **asyncio.run(_measure(given.rounds, copies=given.copies))}, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
