"""Kopf operator of the examples, on a fleet of clusters."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from pathlib import Path

import pytest

from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES

EXAMPLE = Path(__file__).parents[2] / "examples" / "kopf"
NAMESPACE = "kopf-example"


def test_page_from_kopf_contains_the_program():
    page = EXAMPLE.parents[1] / "docs" / "multicluster" / "from-kopf.md"
    assert (EXAMPLE / "fleet.py").read_text() in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.fixture
async def counts(api_server):
    """`await counts()`: the annotations that the operator wrote. A labelled ConfigMap has two keys."""
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client:
        await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        labelled = {"metadata": {"name": "asked", "labels": {"demo": "count"}}, "data": {"a": "1", "b": "2"}}
        await client.create(CONFIG_MAPS, labelled, namespace=NAMESPACE)
        await client.create(CONFIG_MAPS, {"metadata": {"name": "other"}}, namespace=NAMESPACE)

        async def read():
            config_maps = (await client.list(CONFIG_MAPS, namespace=NAMESPACE)).items
            annotations = {
                config_map["metadata"]["name"]: config_map["metadata"].get("annotations", {})
                for config_map in config_maps
            }
            return {name: annotations[name].get("demo/keys") for name in ("asked", "other")}

        yield read
        await client.delete(NAMESPACES, NAMESPACE)


def counted_in(log):
    """Return the clusters of which the log records a call of the handler."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return {line["cluster"] for line in lines if line["message"] == "it has 2 keys"}


@pytest.mark.integration
async def test_operator_reconciles_each_cluster_of_a_directory(api_server, counts, tmp_path, eventually):
    clusters, log = tmp_path / "clusters", tmp_path / "log"
    clusters.mkdir()
    # Both kubeconfigs lead to the same API server. The operator treats them as two clusters.
    for name in ("one", "two"):
        (clusters / f"{name}.kubeconfig").write_bytes(api_server.admin_kubeconfig.read_bytes())
    with log.open("wb") as errors:
        running = await asyncio.create_subprocess_exec(
            sys.executable, EXAMPLE / "fleet.py", cwd=tmp_path, stderr=errors
        )
    try:
        await eventually(counts, lambda found: found == {"asked": "2", "other": None})
        await eventually(lambda: counted_in(log), lambda found: found == {"one", "two"})
    finally:
        running.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(running.wait(), 60) == 0, log.read_text()
