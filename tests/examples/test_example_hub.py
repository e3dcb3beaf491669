"""Example of a hub: its program with two real API servers. The first is also the hub."""

from __future__ import annotations

import base64
import contextlib
import json
import uuid

import pytest
import yaml

from kplane.provider import Client, ClusterConfig, Resource
from kplane.provider.client.resources import CONFIG_MAPS, LEASES, NAMESPACES, SECRETS
from kplane.provider.objects import or_none
from kplane.provider.providers.secrets import KUBECONFIG_LABEL

from .conftest import EXAMPLES

pytestmark = pytest.mark.integration

ROLLOUTS = Resource("fleet.example.com/v1", "Rollout", "rollouts", namespaced=True)
HELLO = {"greeting": "hello"}


class Hub:
    """API servers of the hub and of a second cluster. All objects are in a namespace of this test."""

    def __init__(self, client, away, namespace, start):
        self.home, self.away, self.namespace, self._start = client, away, namespace, start

    def running(self, *peer):
        return self._start("hub/rollouts.py", self.namespace, *peer)

    async def join(self, name, cluster):
        kubeconfig = base64.b64encode(json.dumps(cluster.config.to_kubeconfig()).encode()).decode()
        metadata = {"name": name, "labels": {KUBECONFIG_LABEL: "true"}}
        secret = {"metadata": metadata, "data": {"kubeconfig": kubeconfig}}
        await self.home.create(SECRETS, secret, namespace=self.namespace)

    async def create(self):
        rollout = yaml.safe_load((EXAMPLES / "hub" / "rollout.yaml").read_text())
        rollout["metadata"]["namespace"] = self.namespace
        await self.home.create(ROLLOUTS, rollout)

    async def change(self, **data):
        await self.home.patch(ROLLOUTS, "settings", {"spec": {"data": data}}, namespace=self.namespace)

    async def delete(self):
        await self.home.delete(ROLLOUTS, "settings", namespace=self.namespace)

    async def members(self):
        """Return the generation that each member has, by the status of the Rollout."""
        rollout = await self.home.get(ROLLOUTS, "settings", namespace=self.namespace)
        return rollout.get("status", {}).get("members")

    async def copies(self):
        """Return the data in both clusters; None for a cluster without the ConfigMap."""
        clusters = (self.home, self.away)
        config_maps = [await or_none(item.get(CONFIG_MAPS, "settings", namespace=self.namespace)) for item in clusters]
        return tuple(item and item["data"] for item in config_maps)

    async def holders(self):
        """Return the processes that hold a shard of the members."""
        leases = (await self.home.list(LEASES, namespace=self.namespace)).items
        fences = [lease for lease in leases if lease["metadata"]["name"].startswith("mcr-shard-")]
        return {lease["spec"].get("holderIdentity") for lease in fences}


@pytest.fixture
async def hub(client, clean_api_server, install_crd, api_server, running):
    """Hub without members."""
    await install_crd("hub/crd.yaml")
    namespace = f"hub-{uuid.uuid4().hex[:8]}"
    await client.create(NAMESPACES, {"metadata": {"name": namespace}})

    def start(*arguments):
        return running(*arguments, KUBECONFIG=api_server.admin_kubeconfig)

    async with Client(ClusterConfig.load(clean_api_server.kubeconfig), field_manager="kplane") as away:
        yield Hub(client, away, namespace, start)
    # The program reconciles all Rollouts, and other tests run it too.
    await or_none(client.delete(ROLLOUTS, "settings", namespace=namespace))
    await client.delete(NAMESPACES, namespace)


@pytest.fixture
async def both(hub):
    """Hub with both members. Each has the namespace."""
    await hub.away.create(NAMESPACES, {"metadata": {"name": hub.namespace}})
    await hub.join("home", hub.home)
    await hub.join("away", hub.away)
    return hub


async def test_rollout_copies_data_and_reports_generation_of_members(hub, eventually):
    await hub.join("home", hub.home)
    await hub.join("away", hub.away)
    await hub.create()
    async with hub.running():
        # The namespace is missing in cluster away. Cluster home gets its copy.
        await eventually(hub.members, lambda found: found == {"home": 1})
        await hub.away.create(NAMESPACES, {"metadata": {"name": hub.namespace}})
        await eventually(hub.members, lambda found: found == {"home": 1, "away": 1})
        assert await hub.copies() == (HELLO, HELLO)
        await hub.change(greeting=None, farewell="bye")
        await eventually(hub.members, lambda found: found == {"home": 2, "away": 2})
        assert await hub.copies() == ({"farewell": "bye"}, {"farewell": "bye"})


async def test_changed_or_deleted_copy_is_restored(both, eventually):
    await both.create()
    async with both.running():
        await eventually(both.copies, lambda found: found == (HELLO, HELLO))
        await both.away.patch(CONFIG_MAPS, "settings", {"data": {"greeting": "mine"}}, namespace=both.namespace)
        await both.home.delete(CONFIG_MAPS, "settings", namespace=both.namespace)
        await eventually(both.copies, lambda found: found == (HELLO, HELLO))


async def test_copies_are_deleted_with_the_rollout_also_after_restart(both, eventually):
    await both.create()
    async with both.running():
        await eventually(both.copies, lambda found: found == (HELLO, HELLO))
        await both.delete()
        await eventually(both.copies, lambda found: found == (None, None))
        await both.create()
        await eventually(both.copies, lambda found: found == (HELLO, HELLO))
    await both.delete()
    async with both.running():
        await eventually(both.copies, lambda found: found == (None, None))


async def test_foreign_configmap_is_reported_and_kept(both, eventually):
    existing = {"metadata": {"name": "settings", "namespace": both.namespace}, "data": {"theirs": "yes"}}
    await both.away.create(CONFIG_MAPS, existing)
    await both.create()
    async with both.running() as log:
        await eventually(both.members, lambda found: found == {"home": 1})
        await eventually(lambda: "is no copy: delete or rename it" in log.read_text())
        await both.delete()
        await eventually(both.copies, lambda found: found == (None, {"theirs": "yes"}))


async def test_two_processes_share_the_members_and_write_one_status(hub, eventually):
    # With Leases that no process has held, the first start does not wait.
    for number in range(64):
        metadata = {"name": f"mcr-shard-{number}", "labels": {"app.kubernetes.io/part-of": "multicluster-runtime"}}
        await hub.home.create(LEASES, {"metadata": metadata}, namespace=hub.namespace)
    names = [f"member-{number}" for number in range(8)]
    for name in names:
        await hub.join(name, hub.home)
    await hub.create()
    async with contextlib.AsyncExitStack() as leaving:
        await leaving.enter_async_context(hub.running("one"))
        async with hub.running("two"):
            await eventually(hub.holders, lambda found: found == {"one", "two"})
            await hub.change(greeting="shared")
            await eventually(hub.members, lambda found: found == dict.fromkeys(names, 2))
            await leaving.aclose()
            await hub.change(greeting="alone")
            await eventually(hub.members, lambda found: found == dict.fromkeys(names, 3))
