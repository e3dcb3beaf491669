"""Two processes share the members of a hub. A process is killed while the object of the hub changes."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES

pytestmark = pytest.mark.integration

REPLICA = Path(__file__).with_name("hub_replica.py")
MEMBERS = [f"cluster-{number}" for number in range(8)]
PEERS = ("one", "two")


@pytest.fixture
async def client(api_server):
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client:
        yield client


@pytest.fixture
async def namespace(client):
    name = f"hub-{uuid.uuid4().hex[:8]}"
    await client.create(NAMESPACES, {"metadata": {"name": name}})
    for member in MEMBERS:
        await client.create(CONFIG_MAPS, {"metadata": {"name": member, "namespace": name}})
    yield name
    await client.delete(NAMESPACES, name)


@pytest.fixture
def replicas(api_server, namespace, tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(REPLICA), str(api_server.admin_kubeconfig), namespace]
    started = {}
    for identity in PEERS:
        with (tmp_path / f"{identity}.log").open("wb") as log:
            started[identity] = subprocess.Popen([*command, identity, "8"], stderr=log, env=environment)
    yield started
    for process in started.values():
        process.kill()
        process.wait()


async def test_member_gets_hub_object_from_its_peer_after_kill(client, namespace, replicas, eventually):
    async def want(value):
        await client.apply(
            CONFIG_MAPS, {"metadata": {"name": "wanted", "namespace": namespace}, "data": {"value": value}}, force=True
        )

    async def written():
        found = (await client.list(CONFIG_MAPS, namespace=namespace)).items
        return {obj["metadata"]["name"]: obj.get("data", {}) for obj in found if obj["metadata"]["name"] in MEMBERS}

    async def eventually_written(value):
        seen = await eventually(written, lambda found: all(value in found[name] for name in MEMBERS), timeout=90)
        return {name: seen[name][value] for name in MEMBERS}

    await want("first")
    await eventually_written("first")
    # Each member gets a peer, which then stays the same for each value.
    owners, before = {}, None
    for number in range(30):
        if owners == before and set(owners.values()) == set(PEERS):
            break
        await want(f"shared-{number}")
        owners, before = await eventually_written(f"shared-{number}"), owners
    assert owners == before
    assert set(owners.values()) == set(PEERS)

    killed, left = PEERS
    replicas[killed].kill()
    replicas[killed].wait()
    await want("third")
    assert set((await eventually_written("third")).values()) == {left}
    assert (await written()).keys() == set(MEMBERS)
