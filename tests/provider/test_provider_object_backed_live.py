"""Clusters from objects on a real API server: the data of ConfigMaps describe the clusters."""

from __future__ import annotations

import asyncio
import base64

import pytest

from kplane.provider import Cluster, ClusterConfig
from kplane.provider.client.resources import CONFIG_MAPS, SECRETS
from kplane.provider.errors import AlreadyExists, KubeconfigError
from kplane.provider.fleet.clusters import Clusters
from kplane.provider.providers._support.object_backed import KEEP, FromSecret, ObjectBackedProvider

pytestmark = pytest.mark.integration


def plan(found):
    """Plan by the data: `server` is a URL; `secret` names a Secret with it; `keep`; `bad`; else no cluster."""
    metadata, data = found["metadata"], found.get("data") or {}
    name = f"{metadata['namespace']}/{metadata['name']}"
    if "keep" in data:
        return KEEP
    if "bad" in data:
        raise KubeconfigError(f"{data['bad']} is nonsense")
    if "secret" in data:
        namespace = metadata["namespace"]
        return FromSecret(
            namespace, data["secret"], lambda values, _: Cluster(name, config=ClusterConfig(values["server"].decode()))
        )
    return Cluster(name, config=ClusterConfig(data["server"])) if "server" in data else None


class Place:
    """The ConfigMaps of a namespace."""

    def __init__(self, client, namespace):
        self.client, self.namespace = client, namespace

    async def put(self, name, *, labels=None, **data):
        body = {"metadata": {"name": name, "labels": {"follow": "yes", **(labels or {})}}, "data": data}
        try:
            await self.client.create(CONFIG_MAPS, body, namespace=self.namespace)
        except AlreadyExists:
            body["metadata"]["namespace"] = self.namespace
            await self.client.replace(CONFIG_MAPS, body)

    async def secret(self, name, server):
        data = {"server": base64.b64encode(server.encode()).decode()}
        await self.client.apply(
            SECRETS, {"metadata": {"name": name, "namespace": self.namespace}, "data": data}, force=True
        )

    def following(self, plan=plan, **options):
        return ObjectBackedProvider(
            self.client,
            CONFIG_MAPS,
            plan=plan,
            what="map",
            name=lambda namespace, name: f"{namespace}/{name}",
            namespace=self.namespace,
            label_selector="follow=yes",
            **options,
        )


@pytest.fixture
def place(client, namespace):
    return Place(client, namespace)


@pytest.fixture
async def fleet():
    fleet = Clusters()
    yield fleet
    await fleet.aclose()


def server(fleet, name):
    return fleet.get(name).config.server if name in fleet.names() else None


def tasks_for(word):
    return [task for task in asyncio.all_tasks() if task.get_name().startswith(f"map {word}")]


async def test_clusters_follow_changes_of_their_objects(place, fleet, eventually, caplog, telling):
    name = f"{place.namespace}/a"
    await place.put("a")
    async with telling(place.following(), fleet):
        await place.put("a", server="https://one.test")
        await eventually(lambda: server(fleet, name), lambda found: found == "https://one.test")
        await place.put("a", server="https://two.test")
        await eventually(lambda: server(fleet, name), lambda found: found == "https://two.test")
        await place.put("a", bad="this")
        await eventually(lambda: caplog.text, lambda text: "this is nonsense" in text)
        await place.put("a", keep="")
        await place.put("b", server="https://b.test")
        await eventually(lambda: len(fleet.names()), lambda count: count == 2)
        assert server(fleet, name) == "https://two.test"
        # Unchanged objects have no task.
        await eventually(lambda: tasks_for(place.namespace), lambda found: not found)
        await place.put("a")
        await eventually(fleet.names, lambda names: names == [f"{place.namespace}/b"])
        await place.put("b", labels={"follow": "no"}, server="https://b.test")
        await eventually(fleet.names, lambda names: names == [])


async def test_secret_is_watched_only_while_a_plan_requests_it(place, fleet, eventually, telling):
    name = f"{place.namespace}/a"
    await place.put("a", secret="one")
    async with telling(place.following(), fleet):
        await place.secret("one", "https://one.test")
        await eventually(lambda: server(fleet, name), lambda found: found == "https://one.test")
        await place.secret("one", "https://renewed.test")
        await eventually(lambda: server(fleet, name), lambda found: found == "https://renewed.test")
        await place.client.delete(SECRETS, "one", namespace=place.namespace)
        await place.secret("two", "https://two.test")
        await place.put("a", secret="two")
        await eventually(lambda: server(fleet, name), lambda found: found == "https://two.test")
        assert len(tasks_for(f"{name}: Secret")) == 1
        await place.put("a", server="https://none.test")
        await eventually(lambda: server(fleet, name), lambda found: found == "https://none.test")
        await eventually(lambda: tasks_for(place.namespace), lambda found: not found)
        await place.put("a", secret="two")
        await eventually(lambda: server(fleet, name), lambda found: found == "https://two.test")
    assert tasks_for(place.namespace) == []
    assert fleet.names() == [name]


async def test_restarted_provider_removes_clusters_of_deleted_objects(place, fleet, eventually, telling):
    await place.put("gone", server="https://gone.test")
    await place.put("stays", server="https://stays.test")
    async with telling(place.following(), fleet):
        await eventually(lambda: len(fleet.engagements()), lambda count: count == 2)
    engagement = fleet.engagements()[1]
    await place.client.delete(CONFIG_MAPS, "gone", namespace=place.namespace)
    async with telling(place.following(), fleet):
        await eventually(fleet.names, lambda names: names == [f"{place.namespace}/stays"])
    assert fleet.engagements() == [engagement]


async def test_slow_engagement_and_failing_plan_delay_no_other_cluster(place, fleet, eventually, caplog, telling):
    slow = asyncio.Event()

    class Closing:
        async def engage(self, engagement):
            if engagement.cluster.name.endswith("/slow"):
                engagement.on_close(slow.wait)

    failures = []

    def failing(found):
        if found["metadata"]["name"] == "failing" and len(failures) < 2:
            failures.append(found)
            raise RuntimeError("the plan is broken")
        return plan(found)

    fleet.add_aware(Closing())
    await place.put("slow", server="https://one.test")
    async with telling(place.following(failing), fleet):
        await eventually(lambda: len(fleet.engagements()), lambda count: count == 1)
        await place.put("slow", server="https://two.test")
        await place.put("failing", server="https://failing.test")
        await place.put("other", server="https://other.test")
        await eventually(lambda: server(fleet, f"{place.namespace}/other"))
        # The provider retries without another event.
        await eventually(lambda: server(fleet, f"{place.namespace}/failing"))
        assert len(failures) == 2
        assert "unexpected error" in caplog.text
        await eventually(lambda: f"{place.namespace}/slow" not in [found.cluster.name for found in fleet.engagements()])
        slow.set()
        await eventually(lambda: len(fleet.engagements()), lambda count: count == 3)


async def test_slow_plan_delays_no_other_and_is_dropped_with_its_object(place, fleet, eventually, telling):
    asked, answered = asyncio.Event(), asyncio.Event()

    async def slow(found):
        if found["metadata"]["name"] == "slow":
            asked.set()
            await answered.wait()
        return plan(found)

    seen = []

    class Seeing:
        async def engage(self, engagement):
            seen.append(engagement.cluster.name)

    fleet.add_aware(Seeing())
    await place.put("slow", server="https://slow.test")
    async with telling(place.following(slow), fleet):
        await asked.wait()
        await place.put("other", server="https://other.test")
        await eventually(lambda: seen == [f"{place.namespace}/other"])
        await place.client.delete(CONFIG_MAPS, "slow", namespace=place.namespace)
        await place.put("last", server="https://last.test")
        await eventually(lambda: len(seen) == 2)
        answered.set()
        await eventually(lambda: tasks_for(place.namespace), lambda found: not found)
    assert f"{place.namespace}/slow" not in seen


async def test_recreated_object_replaces_its_engagement(place, fleet, eventually, telling):
    await place.put("a", server="https://a.test")
    async with telling(place.following(), fleet):
        (engagement,) = await eventually(fleet.engagements)
        await place.client.delete(CONFIG_MAPS, "a", namespace=place.namespace)
        await place.put("a", server="https://a.test")
        await eventually(lambda: engagement.closed and fleet.engagements())


async def test_object_is_engaged_when_ready_and_updated_afterwards(place, fleet, eventually, telling):
    name = f"{place.namespace}/a"
    following = place.following(ready=lambda found: "ready" in found["metadata"]["labels"])
    await place.put("a", server="https://a.test")
    await place.put("b", server="https://b.test")
    async with telling(following, fleet):
        await place.put("a", labels={"ready": "yes"}, server="https://a.test")
        await eventually(fleet.names, lambda names: names == [name])
        await place.put("a", server="https://moved.test")
        await eventually(lambda: server(fleet, name), lambda found: found == "https://moved.test")
        assert fleet.names() == [name]


async def test_wake_plans_known_objects_again(place, fleet, eventually, telling):
    wanted = []
    following = place.following(lambda found: plan(found) if found["metadata"]["name"] in wanted else None)
    await place.put("a", server="https://a.test")
    await place.put("b", server="https://b.test")
    following.wake("a", namespace=place.namespace)
    async with telling(following, fleet):
        await eventually(following.has_synced)
        wanted.append("a")
        following.wake("a", namespace=place.namespace)
        following.wake("nobody", namespace=place.namespace)
        await eventually(fleet.names, lambda names: names == [f"{place.namespace}/a"])
        wanted.append("b")
        following.wake_all()
        await eventually(lambda: len(fleet.names()), lambda count: count == 2)
    following.wake_all()
    assert following.get("a", namespace=place.namespace)["data"] == {"server": "https://a.test"}
    assert tasks_for(place.namespace) == []
