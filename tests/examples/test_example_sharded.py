"""Example of sharding: three replicas with the rights of its manifest, and a replica is killed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
from pathlib import Path

import pytest
import yaml

from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "sharded"
CLUSTERS = [f"sharded-{number}" for number in range(9)]


@pytest.fixture
async def kubeconfig(client, tmp_path):
    """Kubeconfig of the ServiceAccount of the manifest."""
    for manifest in yaml.safe_load_all((EXAMPLE / "deployment.yaml").read_text()):
        if manifest["kind"] != "Deployment":
            await client.apply(f"{manifest['apiVersion']}/{manifest['kind']}", manifest, force=True)
    path = "/api/v1/namespaces/sharded/serviceaccounts/sharded/token"
    token_request = await client.request(
        "POST", path, body={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
    )
    config = dataclasses.replace(
        client.config, token=token_request["status"]["token"], client_certificate=None, client_key=None
    )
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config.to_kubeconfig()))
    return path


@contextlib.asynccontextmanager
async def replicas(kubeconfig, hold_port, *names):
    processes = {}
    for name in names:
        environment = {
            **os.environ, "KUBECONFIG": str(kubeconfig), "POD_NAME": name, "POD_NAMESPACE": "sharded",
            "PORT": str(hold_port()),
        }  # fmt: skip
        with (kubeconfig.parent / f"{name}.log").open("wb") as log:
            processes[name] = await asyncio.create_subprocess_exec(
                sys.executable, EXAMPLE / "sharded.py", env=environment, stderr=log
            )
    try:
        yield processes
    finally:
        running = {name: process for name, process in processes.items() if process.returncode is None}
        for process in running.values():
            process.send_signal(signal.SIGTERM)
        for name, process in running.items():
            assert await asyncio.wait_for(process.wait(), 60) == 0, (kubeconfig.parent / f"{name}.log").read_text()


async def test_remaining_replicas_take_over_clusters_of_killed_replica(client, kubeconfig, hold_port, eventually):
    async def write(text):
        for name in CLUSTERS:
            await client.apply(
                CONFIG_MAPS, {"metadata": {"name": "greeting", "namespace": name}, "data": {"text": text}}, force=True
            )

    async def seen(text):
        """Return the replica that stamped this text, by cluster."""
        config_maps = (await client.list(CONFIG_MAPS, field_selector="metadata.name=greeting")).items
        stamps = {item["metadata"]["namespace"]: item["metadata"].get("annotations", {}) for item in config_maps}
        return {name: item["demo/replica"] for name, item in stamps.items() if item.get("demo/seen") == text}

    for name in CLUSTERS:
        await client.create(NAMESPACES, {"metadata": {"name": name, "labels": {"demo": "fleet"}}})
    await write("first")
    try:
        async with replicas(kubeconfig, hold_port, "a", "b", "c") as running:
            first = await eventually(lambda: seen("first"), lambda found: len(found) == len(CLUSTERS), timeout=90)
            assert len(set(first.values())) > 1
            killed = next(iter(first.values()))
            running[killed].kill()
            await running[killed].wait()
            await write("second")
            second = await eventually(lambda: seen("second"), lambda found: len(found) == len(CLUSTERS), timeout=90)
            assert killed not in second.values()
    finally:
        for name in (*CLUSTERS, "sharded"):
            await client.delete(NAMESPACES, name)
        for kind in ("ClusterRole", "ClusterRoleBinding"):
            await client.delete(f"rbac.authorization.k8s.io/v1/{kind}", "sharded")
