"""Measures the reset of an API server: `python -m benchmarks.clean_api_server --rounds 20`.

Starts etcd and kube-apiserver as the fixture `clean_api_server` does, fills the API server as a test would, and resets
it. Prints JSON: seconds of a fresh start, and of a reset.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from kplane.binaries.programs import resolve
from kplane.provider import ApiError, Client, ClusterConfig, Resource
from kplane.provider.client.resources import CLUSTER_ROLE_BINDINGS as BINDINGS
from kplane.provider.client.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES
from kplane.testing.clean.client import CleanServer

_WIDGETS: Final = Resource("example.com/v1", "Widget", "widgets", namespaced=True)
_CRD: Final[dict[str, Any]] = {
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"kind": "Widget", "plural": "widgets", "singular": "widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
_BINDING: Final[dict[str, Any]] = {
    "metadata": {"name": "extra"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
    "subjects": [{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}],
}


_POLICIES: Final = Resource(
    "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", namespaced=False
)
_POLICY: Final[dict[str, Any]] = {
    "metadata": {"name": "none"},
    "spec": {
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"]}
            ]
        },
        "validations": [{"expression": "false"}],
    },
}


async def _fill(client: Client, *, crd: bool, config_maps: int, policy: bool) -> None:
    await client.create(NAMESPACES, {"metadata": {"name": "shop"}})
    for number in range(config_maps):
        await client.create(CONFIG_MAPS, {"metadata": {"name": f"c{number}"}}, namespace="shop")
    if policy:
        await client.create(_POLICIES, _POLICY)
    if not crd:
        return
    await client.create(BINDINGS, _BINDING)
    await client.create(CUSTOM_RESOURCE_DEFINITIONS, _CRD)
    while True:
        try:
            await client.create(_WIDGETS, {"metadata": {"name": "small"}}, namespace="shop")
        except ApiError:
            await asyncio.sleep(0.05)
        else:
            return


def _rounds(
    server: CleanServer, *, rounds: int, config_maps: int, crd: bool = False, policy: bool = False
) -> dict[str, float]:
    async def fill() -> None:
        async with Client(ClusterConfig.load(server.kubeconfig), field_manager="benchmark") as client:
            await _fill(client, crd=crd, config_maps=config_maps, policy=policy)

    seconds, in_etcd, changes = list[float](), list[float](), 0
    for _ in range(rounds):
        asyncio.run(fill())
        began = time.perf_counter()
        cleaned = server.clean()
        seconds.append(time.perf_counter() - began)
        in_etcd.append(cleaned["etcd_seconds"])
        changes = int(cleaned["changes"])
    return {
        "changes": changes,
        "median_seconds": round(statistics.median(seconds), 4),
        "max_seconds": round(max(seconds), 4),
        "median_etcd_seconds": round(statistics.median(in_etcd), 4),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clean_api_server", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="resets of each kind (default: %(default)s)")
    parser.add_argument("--starts", type=int, default=3, help="fresh starts (default: %(default)s)")
    given = parser.parse_args(arguments)
    programs = resolve().directories
    starts = list[float]()
    for _ in range(given.starts - 1):
        began = time.perf_counter()
        with CleanServer(programs=programs):
            starts.append(time.perf_counter() - began)
    began = time.perf_counter()
    with CleanServer(programs=programs) as server:
        starts.append(time.perf_counter() - began)
        began = time.perf_counter()
        keys = server.prepare()
        prepare = time.perf_counter() - began
        report = {
            "machine": {"cpus": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version()},
            "fresh_start_median_seconds": round(statistics.median(starts), 3),
            "template": {"keys": keys, "seconds": round(prepare, 3)},
            "reset": {
                "nothing": _rounds_of_nothing(server, rounds=given.rounds),
                "namespace_and_10_config_maps": _rounds(server, rounds=given.rounds, config_maps=10),
                "and_200_config_maps": _rounds(server, rounds=given.rounds, config_maps=200),
                "and_policy": _rounds(server, rounds=given.rounds, config_maps=10, policy=True),
                "and_rbac_and_crd_with_object": _rounds(server, rounds=given.rounds, config_maps=50, crd=True),
            },
        }
    json.dump(report, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0


def _rounds_of_nothing(server: CleanServer, *, rounds: int) -> dict[str, float]:
    seconds = list[float]()
    for _ in range(rounds):
        began = time.perf_counter()
        server.clean()
        seconds.append(time.perf_counter() - began)
    return {"median_seconds": round(statistics.median(seconds), 4), "max_seconds": round(max(seconds), 4)}


if __name__ == "__main__":
    sys.exit(main())
