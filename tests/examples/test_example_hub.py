"""The example of a hub: its program over two real API servers, one of which is the hub too."""

from __future__ import annotations

import base64
import contextlib
import json
import uuid

import pytest
import yaml

from kplane.provider import Client, ClusterConfig, NotFound, Resource
from kplane.provider.client.resources import CONFIG_MAPS, LEASES, NAMESPACES, SECRETS
from kplane.provider.providers.secrets import KUBECONFIG_LABEL

from .conftest import EXAMPLES

pytestmark = pytest.mark.integration

ROLLOUTS = Resource("fleet.example.com/v1", "Rollout", "rollouts", namespaced=True)
PROGRAM = "hub/rollouts.py"
COPY = {"fleet.example.com/managed-by": "rollouts"}


class Hub:
    """The hub's API server, and one more. Everything is in one namespace of this test."""

    def __init__(self, client, away, namespace, api_server):
        self.home, self.away, self.namespace = client, away, namespace
        self.arguments = ("--kubeconfig", api_server.admin_kubeconfig, "--namespace", namespace)

    async def join(self, name, cluster, **labels):
        kubeconfig = base64.b64encode(json.dumps(cluster.config.to_kubeconfig()).encode()).decode()
        metadata = {"name": name, "labels": {KUBECONFIG_LABEL: "true", **labels}}
        secret = {"metadata": metadata, "data": {"kubeconfig": kubeconfig}}
        await self.home.create(SECRETS, secret, namespace=self.namespace)

    async def create(self, **spec):
        rollout = yaml.safe_load((EXAMPLES / "hub" / "rollout.yaml").read_text())
        rollout["metadata"]["namespace"] = self.namespace
        rollout["spec"].update(spec)
        await self.home.create(ROLLOUTS, rollout)

    async def change(self, **data):
        await self.home.patch(ROLLOUTS, "settings", {"spec": {"data": data}}, namespace=self.namespace)

    async def delete(self):
        await self.home.delete(ROLLOUTS, "settings", namespace=self.namespace)

    async def status(self):
        """Return the sum, and the reason and the generation of each member."""
        status = (await self.home.get(ROLLOUTS, "settings", namespace=self.namespace)).get("status", {})
        members = {
            each["cluster"]: (each["conditions"][0]["reason"], each["observedGeneration"])
            for each in status.get("members", [])
        }
        return status.get("applied"), members

    async def ready(self):
        status = (await self.home.get(ROLLOUTS, "settings", namespace=self.namespace))["status"]
        return status["conditions"][0]["status"], status["conditions"][0]["message"]

    async def copies(self):
        """Return the data in both clusters; None where there is no ConfigMap."""
        return await self._data(self.home), await self._data(self.away)

    async def _data(self, cluster):
        try:
            return (await cluster.get(CONFIG_MAPS, "settings", namespace=self.namespace)).get("data")
        except NotFound:
            return None


@pytest.fixture
async def hub(client, clean_api_server, install_crd, api_server):
    await install_crd("hub/crd.yaml")
    namespace = f"hub-{uuid.uuid4().hex[:8]}"
    await client.create(NAMESPACES, {"metadata": {"name": namespace}})
    async with Client(ClusterConfig.load(clean_api_server.kubeconfig), field_manager="kplane") as away:
        yield Hub(client, away, namespace, api_server)
    # Other tests run the program too, and it works on all Rollouts.
    for each in (await client.list(ROLLOUTS, namespace=namespace)).items:
        await client.delete(ROLLOUTS, each["metadata"]["name"], namespace=namespace)
    await client.delete(NAMESPACES, namespace)


@pytest.fixture
async def both(hub):
    """The hub with both members in production, and the namespace in both."""
    await hub.away.create(NAMESPACES, {"metadata": {"name": hub.namespace}})
    await hub.join("home", hub.home, stage="prod")
    await hub.join("away", hub.away, stage="prod")
    return hub


HELLO = {"greeting": "hello"}


async def test_members_get_the_data_and_the_hub_says_what_each_has(hub, running, eventually):
    await hub.join("home", hub.home, stage="prod")
    await hub.join("away", hub.away, stage="prod")
    await hub.create()
    async with running(PROGRAM, *hub.arguments):
        # One member has no such namespace. This holds up no other one.
        expected = ("1/2", {"home": ("Applied", 1), "away": ("NotFound", 1)})
        await eventually(hub.status, lambda found: found == expected)
        assert await hub.ready() == ("False", "waiting for away")
        await hub.away.create(NAMESPACES, {"metadata": {"name": hub.namespace}})
        await eventually(hub.status, lambda found: found == ("2/2", {"home": ("Applied", 1), "away": ("Applied", 1)}))
        assert await hub.ready() == ("True", "")
        assert await hub.copies() == (HELLO, HELLO)
        await hub.change(greeting=None, farewell="bye")
        await eventually(hub.status, lambda found: found == ("2/2", {"home": ("Applied", 2), "away": ("Applied", 2)}))
        assert await hub.copies() == ({"farewell": "bye"}, {"farewell": "bye"})


async def test_what_is_changed_or_deleted_in_a_member_is_restored(both, running, eventually):
    await both.create()
    async with running(PROGRAM, *both.arguments):
        await eventually(both.copies, lambda found: found == (HELLO, HELLO))
        await both.away.patch(CONFIG_MAPS, "settings", {"data": {"greeting": "mine"}}, namespace=both.namespace)
        await both.home.delete(CONFIG_MAPS, "settings", namespace=both.namespace)
        await eventually(both.copies, lambda found: found == (HELLO, HELLO))


async def test_a_member_that_is_not_selected_any_more_has_no_copy_and_no_entry(both, running, eventually):
    await both.create()
    async with running(PROGRAM, *both.arguments):
        await eventually(both.status, lambda found: found[0] == "2/2")
        await both.home.patch(SECRETS, "away", {"metadata": {"labels": {"stage": "test"}}}, namespace=both.namespace)
        await eventually(both.status, lambda found: found == ("1/1", {"home": ("Applied", 1)}))
        assert await both.copies() == (HELLO, None)


async def test_a_member_that_leaves_has_no_entry_and_keeps_its_copy(both, running, eventually):
    await both.create()
    async with running(PROGRAM, *both.arguments):
        await eventually(both.status, lambda found: found[0] == "2/2")
        await both.home.delete(SECRETS, "away", namespace=both.namespace)
        await eventually(both.status, lambda found: found == ("1/1", {"home": ("Applied", 1)}))
        assert await both.copies() == (HELLO, HELLO)


async def test_the_copies_go_with_the_rollout_also_if_no_process_saw_its_deletion(both, running, eventually):
    await both.create()
    async with running(PROGRAM, *both.arguments):
        await eventually(both.copies, lambda found: found == (HELLO, HELLO))
        await both.delete()
        await eventually(both.copies, lambda found: found == (None, None))
        await both.create()
        await eventually(both.copies, lambda found: found == (HELLO, HELLO))
    await both.delete()
    async with running(PROGRAM, *both.arguments):
        await eventually(both.copies, lambda found: found == (None, None))


async def test_a_configmap_of_others_is_reported_and_left_alone(both, running, eventually):
    theirs = {"metadata": {"name": "settings", "namespace": both.namespace}, "data": {"theirs": "yes"}}
    await both.away.create(CONFIG_MAPS, theirs)
    await both.create()
    async with running(PROGRAM, *both.arguments):
        await eventually(both.status, lambda found: found == ("1/2", {"home": ("Applied", 1), "away": ("Taken", 1)}))
        await both.delete()
        await eventually(both.copies, lambda found: found == (None, {"theirs": "yes"}))


def reported_by(log):
    """In which members the process has worked, by its log."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return {line["cluster"] for line in lines if line["message"] == "reported Applied"}


async def test_two_processes_share_the_members_and_write_one_status(hub, running, eventually):
    # With Leases that no process has held, the first start does not wait.
    for number in range(64):
        metadata = {"name": f"mcr-shard-{number}", "labels": {"app.kubernetes.io/part-of": "multicluster-runtime"}}
        await hub.home.create(LEASES, {"metadata": metadata}, namespace=hub.namespace)
    members = [f"member-{number}" for number in range(8)]
    for name in members:
        await hub.join(name, hub.home, stage="prod")
    await hub.create()

    async def holders():
        leases = (await hub.home.list(LEASES, namespace=hub.namespace)).items
        fences = [each for each in leases if each["metadata"]["name"].startswith("mcr-shard-")]
        return {each["spec"].get("holderIdentity") for each in fences}

    def all_at(generation):
        expected = ("8/8", dict.fromkeys(members, ("Applied", generation)))
        return eventually(hub.status, lambda found: found == expected)

    async with running(PROGRAM, *hub.arguments, "--peer", "one") as first, contextlib.AsyncExitStack() as leaving:
        second = await leaving.enter_async_context(running(PROGRAM, *hub.arguments, "--peer", "two"))
        await eventually(holders, lambda found: found == {"one", "two"})
        await hub.change(greeting="shared")
        await all_at(2)
        assert reported_by(first) | reported_by(second) == set(members)
        assert reported_by(second)
        await leaving.aclose()
        await hub.change(greeting="alone")
        await all_at(3)
