"""Three replicas of the example, with the rights of its manifest; one is killed."""

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
    """The kubeconfig of the ServiceAccount of the manifest."""
    for each in yaml.safe_load_all((EXAMPLE / "deployment.yaml").read_text()):
        if each["kind"] != "Deployment":
            await client.apply(f"{each['apiVersion']}/{each['kind']}", each, force=True)
    path = "/api/v1/namespaces/sharded/serviceaccounts/sharded/token"
    asked = await client.request("POST", path, body={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"})
    config = dataclasses.replace(
        client.config, token=asked["status"]["token"], client_certificate=None, client_key=None
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
        running = {name: each for name, each in processes.items() if each.returncode is None}
        for each in running.values():
            each.send_signal(signal.SIGTERM)
        for name, each in running.items():
            assert await asyncio.wait_for(each.wait(), 60) == 0, (kubeconfig.parent / f"{name}.log").read_text()


async def test_each_cluster_has_a_replica_also_after_one_was_killed(client, kubeconfig, hold_port, eventually):
    async def write(text):
        for name in CLUSTERS:
            await client.apply(
                CONFIG_MAPS, {"metadata": {"name": "greeting", "namespace": name}, "data": {"text": text}}, force=True
            )

    async def seen(text):
        """By which replicas, by cluster."""
        found = (await client.list(CONFIG_MAPS, field_selector="metadata.name=greeting")).items
        stamps = {each["metadata"]["namespace"]: each["metadata"].get("annotations", {}) for each in found}
        return {name: each["demo/replica"] for name, each in stamps.items() if each.get("demo/seen") == text}

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
