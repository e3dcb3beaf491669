"""Example of leader election: two processes, and the leader is killed."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from kplane.provider.client.resources import CONFIG_MAPS, LEASES
from kplane.provider.objects import or_none

from .conftest import EXAMPLES

pytestmark = pytest.mark.integration


@pytest.fixture
async def leader(client):
    """`await leader()`: the leader that the ConfigMap names."""

    async def read():
        config_map = await or_none(client.get(CONFIG_MAPS, "leader", namespace="default"))
        return config_map and config_map["data"]["leader"]

    yield read
    await or_none(client.delete(CONFIG_MAPS, "leader", namespace="default"))
    await or_none(client.delete(LEASES, "leader-example", namespace="default"))


async def test_process_takes_over_when_leader_is_killed(api_server, client, leader, running, eventually, tmp_path):
    kubeconfig = api_server.admin_kubeconfig
    with (tmp_path / "one.log").open("wb") as log:
        first = await asyncio.create_subprocess_exec(
            *(sys.executable, EXAMPLES / "leader.py", "one"),
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            stderr=log,
        )
    try:
        await eventually(leader, lambda name: name == "one")
        lease = await client.request("GET", LEASES.path("leader-example", namespace="default"))
        assert {entry["manager"] for entry in lease["metadata"]["managedFields"]} == {"leader-example"}
        async with running("leader.py", "two", KUBECONFIG=kubeconfig) as waiting:
            await eventually(lambda: "held by" in waiting.read_text())
            assert await leader() == "one"
            first.kill()
            await first.wait()
            await eventually(leader, lambda name: name == "two")
    finally:
        if first.returncode is None:
            first.kill()
            await first.wait()
