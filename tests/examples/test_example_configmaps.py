"""Commands of the example of a multicluster reconciler, for each source of clusters."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import sys
import uuid

import pytest

from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES, SECRETS
from kplane.provider.providers.kplane import REGISTRATIONS

pytestmark = pytest.mark.integration


@pytest.fixture
async def namespace(client):
    name = f"example-{uuid.uuid4().hex[:8]}"
    await client.create(NAMESPACES, {"metadata": {"name": name}})
    return name


@contextlib.asynccontextmanager
async def running(log, *arguments, **environment):
    """Run the example until SIGTERM. It must exit with status 0."""
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "examples/configmaps.py", *arguments),
            env={**os.environ, **environment},
            stderr=errors,
        )
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0, log.read_text()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def files(api_server, directory):
    (directory / "one.kubeconfig").write_bytes(api_server.admin_kubeconfig.read_bytes())
    return ("files", str(directory)), {}, "one"


def kind(api_server, directory):
    """Install a fake `kind`. The end-to-end suite uses the real program."""
    program = directory / "kind"
    program.write_text(
        f"""#!/bin/sh
case "$*" in
"get clusters"*) echo fleet-1; echo other;;
*fleet-1*) cat {api_server.admin_kubeconfig};;
esac
"""
    )
    program.chmod(0o755)
    return ("kind", "fleet-"), {"PATH": f"{directory}:{os.environ['PATH']}"}, "fleet-1"


def registrations(api_server, directory):
    """Use a service that no other test registers for."""
    return ("registrations", str(api_server.admin_kubeconfig), "scheduler"), {}, None


async def register(client, namespace, *, api_server, service):
    """Create a registration with the status that the operator writes when it is ready."""
    kubeconfig = base64.b64encode(api_server.admin_kubeconfig.read_bytes()).decode()
    await client.create(
        SECRETS, {"metadata": {"name": "admin"}, "data": {"kubeconfig": kubeconfig}}, namespace=namespace
    )
    name = f"example-{namespace}"
    spec = {"controlPlaneRef": {"name": "x"}, "services": [service]}
    await client.create(REGISTRATIONS, {"metadata": {"name": name}, "spec": spec})
    status = {
        "ready": True,
        "observedGeneration": 1,
        "resolvedEndpoint": client.config.server,
        "resolvedKubeconfigSecretRef": {"name": "admin", "namespace": namespace},
        "services": [service.title()],
    }
    await client.patch(REGISTRATIONS, name, {"status": status}, subresource="status")
    return name


@pytest.mark.parametrize("source", [files, kind, registrations])
async def test_labelled_config_maps_get_the_name_of_their_cluster(
    source, api_server, client, namespace, tmp_path, eventually
):
    arguments, environment, name = source(api_server, tmp_path)
    if name is None:
        name = await register(client, namespace, api_server=api_server, service="scheduler")
    labelled = {"metadata": {"name": "asked", "labels": {"demo": "stamp"}}}
    await client.create(CONFIG_MAPS, labelled, namespace=namespace)
    await client.create(CONFIG_MAPS, {"metadata": {"name": "other"}}, namespace=namespace)

    async def stamps():
        config_maps = await client.list(CONFIG_MAPS, namespace=namespace)
        annotations = {
            config_map["metadata"]["name"]: config_map["metadata"].get("annotations", {})
            for config_map in config_maps.items
        }
        return {
            key: value.get("demo/cluster") for key, value in annotations.items() if key in {"asked", "later", "other"}
        }

    async with running(tmp_path / "log", *arguments, **environment):
        await eventually(stamps, lambda found: found == {"asked": name, "other": None})
        later = {"metadata": {"name": "later", "labels": {"demo": "stamp"}}}
        await client.create(CONFIG_MAPS, later, namespace=namespace)
        await eventually(stamps, lambda found: found == {"asked": name, "later": name, "other": None})
    if source is registrations:
        await client.delete(REGISTRATIONS, name)
