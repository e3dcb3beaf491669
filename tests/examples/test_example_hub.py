"""The example of a hub: its program over two real API servers, one of which is the hub too."""

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
    """The hub's API server, and one more. Everything is in one namespace of this test."""

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
        found = [await or_none(each.get(CONFIG_MAPS, "settings", namespace=self.namespace)) for each in clusters]
        return tuple(each and each["data"] for each in found)

    async def holders(self):
        """Return the processes that hold a shard of the members."""
        leases = (await self.home.list(LEASES, namespace=self.namespace)).items
        fences = [each for each in leases if each["metadata"]["name"].startswith("mcr-shard-")]
        return {each["spec"].get("holderIdentity") for each in fences}


@pytest.fixture
async def hub(client, clean_api_server, install_crd, api_server, running):
    """The hub without members."""
    await install_crd("hub/crd.yaml")
    namespace = f"hub-{uuid.uuid4().hex[:8]}"
    await client.create(NAMESPACES, {"metadata": {"name": namespace}})

    def start(*arguments):
        return running(*arguments, KUBECONFIG=api_server.admin_kubeconfig)

    async with Client(ClusterConfig.load(clean_api_server.kubeconfig), field_manager="kplane") as away:
        yield Hub(client, away, namespace, start)
    # Other tests run the program too, and it works on all Rollouts.
    await or_none(client.delete(ROLLOUTS, "settings", namespace=namespace))
    await client.delete(NAMESPACES, namespace)


@pytest.fixture
async def both(hub):
    """The hub with both members, and the namespace in both."""
    await hub.away.create(NAMESPACES, {"metadata": {"name": hub.namespace}})
    await hub.join("home", hub.home)
    await hub.join("away", hub.away)
    return hub


async def test_members_get_the_data_and_the_status_reports_each(hub, eventually):
    await hub.join("home", hub.home)
    await hub.join("away", hub.away)
    await hub.create()
    async with hub.running():
        # One member has no such namespace. The other member gets its copy meanwhile.
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


async def test_copies_go_with_the_rollout_also_if_no_process_saw_its_deletion(both, eventually):
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


async def test_configmap_of_others_is_left_alone(both, eventually):
    theirs = {"metadata": {"name": "settings", "namespace": both.namespace}, "data": {"theirs": "yes"}}
    await both.away.create(CONFIG_MAPS, theirs)
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
