"""Events of a cluster: told in the background, counted, bounded, and gone with it."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from kplane.provider import Cluster, ClusterConfig, ClusterNotFound, ProviderError
from kplane.provider.cluster.context import cluster_context, current_cluster
from kplane.provider.cluster.recorder import EventRecorder
from kplane.provider.errors import ClusterNotOwned

ROLE = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "system:node"}}
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop", "uid": "7"}}


class Asking:
    """A client of which only the writes count; `refusal` is raised by each of them, once it is set."""

    def __init__(self):
        self.created, self.patched, self.refused, self.refusal, self.of_reconciles = [], [], [], None, None
        self.gate = asyncio.Event()
        self.gate.set()

    async def create(self, resource, body):
        await self.gate.wait()
        if self.refusal is not None:
            self.refused.append(body["message"])
            raise self.refusal
        if self.of_reconciles is not None and current_cluster() is not None:
            raise self.of_reconciles
        self.created.append(body)

    async def get(self, resource, name, *, namespace):
        return {"count": sum(1 for body in self.created if body["metadata"]["name"] == name)}

    async def patch(self, resource, name, body, *, namespace):
        self.patched.append((namespace, name, body["count"]))


@pytest.fixture
async def recorder():
    client = Asking()
    made = EventRecorder(lambda: client, component="builder", repeat_seconds=0.1)
    made.client = client
    yield made
    await made.aclose()


async def test_an_event_is_in_the_namespace_of_its_object(recorder, eventually):
    recorder.event(POD, "Normal", "Created", "made a volume")
    recorder.event(ROLE, "Warning", "Refused", "x" * 2000)
    await eventually(lambda: len(recorder.client.created) == 2)
    first, second = recorder.client.created
    assert first["metadata"]["namespace"] == first["involvedObject"]["namespace"] == "shop"
    assert (first["type"], first["reason"], first["count"]) == ("Normal", "Created", 1)
    assert first["source"] == {"component": "builder"}
    assert second["metadata"]["namespace"] == "default"
    assert "namespace" not in second["involvedObject"]
    assert ":" not in second["metadata"]["name"]
    assert len(second["message"]) == 1024


async def test_what_is_said_again_is_counted_and_not_posted_again(recorder, eventually):
    for _ in range(50):
        recorder.event(POD, "Normal", "Created", "made a volume")
    await eventually(lambda: recorder.client.created)
    assert recorder.client.created[0]["count"] == 50
    for _ in range(3):
        recorder.event(POD, "Normal", "Created", "made a volume")
    await eventually(lambda: recorder.client.patched)
    assert [patch[2] for patch in recorder.client.patched] == [1 + 3]
    assert len(recorder.client.created) == 1


async def test_who_may_not_write_any_more_posts_no_events_of_a_reconcile_either(recorder, eventually):
    """A coordinator such as `Leader` holds back what is done in reconciles."""
    recorder.client.of_reconciles = ClusterNotOwned("this process does not lead")
    with cluster_context("a"):
        recorder.event(POD, "Normal", "Created", "said in a reconcile")
    recorder.event(POD, "Normal", "Created", "said by a webhook")
    await eventually(lambda: recorder.client.created)
    assert [body["message"] for body in recorder.client.created] == ["said by a webhook"]


async def test_one_that_repeats_delays_no_other(recorder, eventually):
    slow = EventRecorder(lambda: recorder.client, component="builder", repeat_seconds=60)
    slow.event(POD, "Normal", "Created", "again and again")
    await eventually(lambda: recorder.client.created)
    slow.event(POD, "Normal", "Created", "again and again")
    await asyncio.sleep(0)
    slow.event(POD, "Normal", "Resized", "another thing")
    await eventually(lambda: len(recorder.client.created) == 2)
    await slow.aclose()


async def test_more_than_a_thousand_are_dropped_and_that_is_said_once_in_a_while(recorder, caplog):
    recorder.client.gate.clear()
    caplog.set_level(logging.WARNING)
    for number in range(3000):
        recorder.event(POD, "Normal", "Created", f"volume {number}")
    assert 10 < len(caplog.records) < 13
    assert "1000 others wait" in caplog.text


async def test_a_refusal_ends_with_the_event_and_an_outage_does_not(recorder, eventually, caplog, monkeypatch):
    from kplane.provider import Unreachable
    from kplane.provider.errors import Forbidden

    recorder.client.refusal = Forbidden(403, "Forbidden", "may not create events")
    recorder.event(POD, "Normal", "Created", "one")
    await eventually(lambda: "may not create events" in caplog.text)
    recorder.client.refusal = Unreachable("no", kind="connect")
    recorder.event(POD, "Normal", "Created", "two")
    await eventually(lambda: recorder.client.refused == ["one", "two"])
    recorder.client.refusal = None
    await eventually(lambda: [body["message"] for body in recorder.client.created] == ["two"])


@pytest.mark.parametrize(
    ("about", "kind"), [(POD, "Info"), ({"metadata": {"name": "a"}}, "Normal"), ({**POD, "metadata": {}}, "Normal")]
)
async def test_what_is_no_event_is_the_callers_mistake(recorder, about, kind):
    with pytest.raises(ProviderError):
        recorder.event(about, kind, "Created", "made")


async def test_nothing_is_left_of_the_recorders_of_a_cluster_that_ends():
    cluster = Cluster("a", config=ClusterConfig("https://127.0.0.1:1"))
    tasks = asyncio.all_tasks()
    recorder = cluster.recorder("builder")
    assert cluster.recorder("builder") is recorder
    assert asyncio.all_tasks() == tasks, "one that has nothing to tell has no task"
    recorder.event(POD, "Normal", "Created", "made")
    await asyncio.sleep(0)
    await cluster.aclose()
    assert asyncio.all_tasks() == tasks
    recorder.event(POD, "Normal", "Created", "made")
    assert asyncio.all_tasks() == tasks
    with pytest.raises(ClusterNotFound):
        cluster.recorder("builder")


@pytest.mark.integration
async def test_the_api_server_keeps_one_event_with_its_count(client, namespace, eventually):
    from kplane.provider.client.resources import CONFIG_MAPS, EVENTS, NAMESPACES

    about = await client.create(CONFIG_MAPS, {"metadata": {"name": "web"}}, namespace=namespace)
    for run in range(2):  # the second is what another process would say later
        recorder = EventRecorder(lambda: client, component="builder", repeat_seconds=0.1)
        recorder.event(about, "Warning", "Full", "no room")
        recorder.event(await client.get(NAMESPACES, "default"), "Normal", "Seen", f"run {run} of {namespace}")

        async def count(expected=run + 1):
            found = (await client.list(EVENTS, namespace=namespace)).items
            assert [(event["reason"], event["count"]) for event in found] == [("Full", expected)], json.dumps(found)
            said = (await client.list(EVENTS, namespace="default")).items
            return any(event["message"] == f"run {expected - 1} of {namespace}" for event in said)

        await eventually(count)
        await recorder.aclose()
