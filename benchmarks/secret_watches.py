"""Measures the cost of a Secret watch in each namespace: `python -m benchmarks.secret_watches --namespaces 200`.

Runs a plain etcd and kube-apiserver, and creates the namespaces of control planes with four Secrets each. First, a
single watch follows all Secrets, as in earlier versions of the operator. Then each namespace has its own watch.

Prints JSON: the seconds until all Secrets are cached. For this process and the API server it adds the processor seconds
until then and at rest, and MiB of anonymous memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.cost import cpu_seconds, memory_of
from benchmarks.surroundings import start_api_server
from kplane.api.names import CONTROL_PLANE_LABEL, management_namespace
from kplane.binaries.programs import resolve
from kplane.controlplane_operator.secret_access import SecretAccess
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import Client, Informer
from kplane.provider.client.resources import NAMESPACES, SECRETS
from kplane.workloads import ProcessRuntime, find_processes

_SECRETS: Final = 4
_BYTES: Final = 6000
"""Size of a Secret, about that of a certificate and its key."""
_POLL_SECONDS: Final = 0.02


async def _create(client: Client, name: str) -> None:
    labels = {CONTROL_PLANE_LABEL: name}
    namespace = management_namespace(name)
    await client.create(NAMESPACES, {"metadata": {"name": namespace, "labels": labels}})
    for number in range(_SECRETS):
        metadata = {"name": f"secret-{number}", "namespace": namespace, "labels": labels}
        await client.create(SECRETS, {"metadata": metadata, "stringData": {"key": os.urandom(_BYTES // 2).hex()}})


class _Cost:
    """Seconds, processor time and memory of this process and the API server."""

    def __init__(self, api_server: int) -> None:
        self._pids: Final = {"operator": os.getpid(), "kube-apiserver": api_server}
        self.found: Final[dict[str, Any]] = {}

    @contextmanager
    def spent(self, what: str) -> Iterator[None]:
        before, began = {name: cpu_seconds(pid) for name, pid in self._pids.items()}, time.monotonic()
        yield
        self.found[f"{what}, seconds"] = round(time.monotonic() - began, 2)
        for name, pid in self._pids.items():
            self.found[f"{what}, processor seconds of {name}"] = round(cpu_seconds(pid) - before[name], 2)

    def memory(self, when: str) -> None:
        for name, pid in self._pids.items():
            self.found[f"{when}, MiB of {name}"] = round(memory_of(pid).anonymous, 1)


async def _measure(
    cost: _Cost, what: str, run: Coroutine[Any, Any, Any], *, stores: Stores, count: int, rest: float
) -> None:
    cost.memory(f"before {what}")
    with cost.spent(f"{what}: until known"):
        task = asyncio.create_task(run, name=what)
        while len(stores.secrets) < count and not task.done():  # noqa: ASYNC110 - a few times in a run
            await asyncio.sleep(_POLL_SECONDS)
    await asyncio.sleep(5)
    with cost.spent(f"{what}: at rest"):
        await asyncio.sleep(rest)
    cost.memory(f"after {what}")
    task.cancel()
    await asyncio.wait([task])


async def _run(namespaces: int, *, rest: float) -> dict[str, Any]:
    names = [f"tenant-{number}" for number in range(namespaces)]
    with tempfile.TemporaryDirectory(prefix="kplane-benchmark-") as directory:
        path, programs = Path(directory), resolve()
        async with ProcessRuntime(path / "runtime", programs=programs.directories) as runtime:
            try:
                server = await start_api_server(runtime, "measured", directory=path)
                async with Client(server.administrator(), keeps_worker=True, field_manager="kplane") as client:
                    for name in names:
                        await _create(client, name)
                    (api_server,) = [
                        pid
                        for pid in find_processes(path)
                        if Path(f"/proc/{pid}/exe").resolve().name == "kube-apiserver"
                    ]
                    cost = _Cost(api_server)
                    stores = Stores()
                    informer = Informer(client, SECRETS, label_selector=CONTROL_PLANE_LABEL)
                    run = informer.run(lambda event: stores.secrets.apply(event.object))
                    count = namespaces * _SECRETS
                    await _measure(cost, "one watch", run, stores=stores, count=count, rest=rest)
                    await informer.aclose()
                    stores = Stores()
                    for number, name in enumerate(names):
                        metadata = {"name": name, "uid": name, "resourceVersion": str(number + 1)}
                        stores.control_planes.apply({"metadata": metadata, "spec": {}})
                    for namespace in (await client.list(NAMESPACES, label_selector=CONTROL_PLANE_LABEL)).items:
                        stores.namespaces.apply(namespace)
                    listed = asyncio.Event()
                    listed.set()
                    access = SecretAccess(client, stores=stores, namespace="kube-system")
                    await _measure(
                        cost, "by namespace", access.run(listed=listed), stores=stores, count=count, rest=rest
                    )
                    return cost.found
            finally:
                for component in list(runtime.names()):
                    await runtime.delete(component)


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namespaces", type=int, default=200, help="number of control planes")
    parser.add_argument("--rest-seconds", type=float, default=60.0, help="time at rest")
    given = parser.parse_args()
    json.dump(asyncio.run(_run(given.namespaces, rest=given.rest_seconds)), sys.stdout, indent=2)


if __name__ == "__main__":
    main()
