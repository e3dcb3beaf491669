"""Measures whether silent endpoints delay others: `python -m benchmarks.isolation --silent 50 --good 20 --rounds 3`.

Runs an embedded management cluster with both operators and a control plane, which an Envoy serves below each path. Good
control planes adopt this control plane. Silent control planes adopt endpoints that accept connections and never answer.

Each round creates the good control planes at once and measures the seconds to Ready: alone, beside existing silent
control planes, and together with new silent control planes. Prints JSON: seconds, and their ratios to the seconds alone
in the same round. All programs share this machine, so ratios carry over better than seconds.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.kubeconfig import kubeconfig_of
from benchmarks.surroundings import open_namespace, shared_address, silent_servers
from kplane.api.names import ALLOW_ENDPOINT_LABEL
from kplane.binaries.programs import resolve
from kplane.controlplane_operator.kinds import CONTROL_PLANE_ENDPOINTS, CONTROL_PLANES
from kplane.embedded.daemon import Daemon
from kplane.embedded.handle import Handle
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import SECRETS

_POLL_SECONDS: Final = 0.05
_DEADLINE_SECONDS: Final = 240.0
_SECRET: Final = {"name": "isolation-administrator", "namespace": "default"}


def _reason(obj: dict[str, Any]) -> str:
    conditions = obj.get("status", {}).get("conditions") or ()
    return next((str(condition["reason"]) for condition in conditions if condition["type"] == "Ready"), "")


class _Field:
    """Creates and deletes control planes that adopt one API server."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.server = ""

    async def prepare(self) -> ClusterConfig:
        """Create an API server, and return its administrator's access."""
        await self._client.create(CONTROL_PLANES, {"metadata": {"name": "host"}, "spec": {"deletionPolicy": "Destroy"}})
        await self._until({"host": "Reconciled"})
        return ClusterConfig.from_kubeconfig(await kubeconfig_of(self._client, "host"))

    async def share(self, address: ClusterConfig) -> None:
        """Make all good control planes adopt this address. No deletion revokes its credentials."""
        metadata = {**_SECRET, "labels": {ALLOW_ENDPOINT_LABEL: "true"}}
        data = {"kubeconfig": base64.b64encode(json.dumps(address.to_kubeconfig()).encode()).decode()}
        await open_namespace(self._client)
        await self._client.create(SECRETS, {"metadata": metadata, "data": data})
        self.server = address.server

    async def adopt(self, name: str, url: str) -> None:
        """Create a control plane that adopts the API server at a URL."""
        endpoint = {"endpoint": url, "credentialsSecretRef": _SECRET}
        await self._client.create(CONTROL_PLANE_ENDPOINTS, {"metadata": {"name": name}, "spec": endpoint})
        spec = {"endpointRef": {"name": name}}
        await self._client.create(CONTROL_PLANES, {"metadata": {"name": name}, "spec": spec})

    async def measure(
        self, number: int, *, beside: Sequence[str] = (), at_once: Sequence[str] = ()
    ) -> dict[str, float]:
        """Create `number` good control planes, and return the seconds until they are Ready.

        Silent control planes adopt the URLs `beside` before the clock starts, and `at_once` with the good ones.
        """
        silent = {f"silent-{index}": url for index, url in enumerate([*beside, *at_once])}
        good = [f"good-{index}" for index in range(number)]
        if beside:
            await asyncio.gather(*(self.adopt(name, url) for name, url in silent.items()))
            await self._until(dict.fromkeys(silent, "EndpointUnreachable"))
        began = time.monotonic()
        if at_once:
            await asyncio.gather(*(self.adopt(name, url) for name, url in silent.items()))
        await asyncio.gather(*(self.adopt(name, self.server) for name in good))
        reached = await self._until(dict.fromkeys(good, "Reconciled"))
        seconds = sorted(at - began for at in reached.values())
        await self._delete([*good, *silent])
        return {"p50": round(statistics.median(seconds), 2), "all": round(seconds[-1], 2)}

    async def _until(self, wanted: dict[str, str]) -> dict[str, float]:
        """Wait until each control plane has its reason, and return the times."""
        reached: dict[str, float] = {}
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while len(reached) < len(wanted):
                for obj in (await self._client.list(CONTROL_PLANES)).items:
                    name = obj["metadata"]["name"]
                    if name in wanted and name not in reached and _reason(obj) == wanted[name]:
                        reached[name] = time.monotonic()
                await asyncio.sleep(_POLL_SECONDS)
        return reached

    async def _delete(self, names: Sequence[str]) -> None:
        for name in names:
            await self._client.delete(CONTROL_PLANES, name)
        remaining = set(names)
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while remaining:
                await asyncio.sleep(_POLL_SECONDS)
                remaining &= {obj["metadata"]["name"] for obj in (await self._client.list(CONTROL_PLANES)).items}
        for name in names:
            await self._client.delete(CONTROL_PLANE_ENDPOINTS, name)


async def _run(handle: Handle, directory: Path, *, silent: int, good: int, rounds: int) -> dict[str, Any]:
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            Client(ClusterConfig.load(handle.admin_kubeconfig), field_manager="kplane")
        )
        urls = stack.enter_context(silent_servers(silent))
        field = _Field(client)
        backend = await field.prepare()
        await field.share(await stack.enter_async_context(shared_address(backend, directory=directory)))
        await field.measure(good)  # warm-up
        results = [
            {
                "alone": await field.measure(good),
                "silent_before": await field.measure(good, beside=urls),
                "alone_again": await field.measure(good),
                "silent_at_once": await field.measure(good, at_once=urls),
            }
            for _ in range(rounds)
        ]
    return {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        "silent": silent,
        "good": good,
        "rounds_seconds": results,
        "ratio_to_alone": {
            name: {measure: _ratio(results, name, measure) for measure in ("p50", "all")}
            for name in ("alone_again", "silent_before", "silent_at_once")
        },
        "load_average": os.getloadavg(),
    }


def _ratio(rounds: Sequence[dict[str, dict[str, float]]], name: str, measure: str) -> float:
    """Return the median ratio of a figure to the run alone in the same round."""
    return round(statistics.median(result[name][measure] / result["alone"][measure] for result in rounds), 2)


def main() -> None:
    """Parse the command line, measure, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--silent", type=int, default=50, help="number of endpoints without answers (default: 50)")
    parser.add_argument("--good", type=int, default=20, help="number of measured control planes (default: 20)")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: 3)")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="kplane-benchmark-") as directory,
        Daemon(Path(directory), binaries=resolve()) as daemon,
    ):
        handle = daemon.wait_ready(timeout_seconds=120)
        shape = {"silent": arguments.silent, "good": arguments.good, "rounds": arguments.rounds}
        result = asyncio.run(_run(handle, Path(directory), **shape))
    json.dump(result, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
