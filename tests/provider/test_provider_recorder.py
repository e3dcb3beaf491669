"""Events of a cluster: posted in the background, counted, bounded, and dropped with the cluster."""

from __future__ import annotations

import asyncio
import json
import logging
import re

import pytest

from kplane.provider import Cluster, ClusterConfig, ClusterNotFound, ProviderError
from kplane.provider.client.resources import CONFIG_MAPS, EVENTS, NAMESPACES
from kplane.provider.cluster.context import cluster_context, current_cluster
from kplane.provider.cluster.recorder import EventRecorder
from kplane.provider.cluster.similar import SimilarEvents
from kplane.provider.errors import AlreadyExists, ClusterNotOwned, NotFound

ROLE = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "system:node"}}
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop", "uid": "7"}}


class Asking:
    """A client that records writes; each write raises `refusal` if it is set."""

    def __init__(self):
        self.created, self.patched, self.refused, self.refusal, self.of_reconciles = [], [], [], None, None
        self.gate = asyncio.Event()
        self.gate.set()

    async def create(self, resource, body):
        await self.gate.wait()
        if self.refusal is not None:
            self.refused.append(body["note"])
            raise self.refusal
        if self.of_reconciles is not None and current_cluster() is not None:
            raise self.of_reconciles
        self.created.append(body)

    async def patch(self, resource, name, body, *, namespace):
        self.patched.append(body["series"])


@pytest.fixture
async def recorder():
    client = Asking()
    made = EventRecorder(lambda: client, component="builder", series_ends_seconds=0.1)
    made.client = client
    yield made
    await made.aclose()


async def test_recorder_writes_event_into_namespace_of_object(recorder, eventually):
    recorder.event(POD, "Normal", "Created", "made a volume", action="Provision", related=ROLE)
    recorder.event(ROLE, "Warning", "Refused", "x" * 2000)
    await eventually(lambda: len(recorder.client.created) == 2)
    first, second = recorder.client.created
    assert first["metadata"]["namespace"] == first["regarding"]["namespace"] == "shop"
    assert (first["type"], first["reason"], first["action"]) == ("Normal", "Created", "Provision")
    assert first["regarding"] == {"apiVersion": "v1", "kind": "Pod", "name": "web", "namespace": "shop", "uid": "7"}
    assert first["related"]["name"] == "system:node"
    assert first["reportingController"] == "builder"
    assert first["reportingInstance"].startswith("builder-")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", first["eventTime"])
    assert "series" not in first
    assert second["metadata"]["namespace"] == "default"
    assert "namespace" not in second["regarding"]
    assert ":" not in second["metadata"]["name"]
    assert (len(second["note"]), second["action"]) == (1024, "Reconcile")


async def test_repeated_event_is_a_series_of_the_first(recorder, eventually):
    for _ in range(50):
        recorder.event(POD, "Normal", "Created", "made a volume")
    await eventually(lambda: recorder.client.created)
    assert recorder.client.created[0]["series"]["count"] == 50
    for _ in range(3):
        recorder.event(POD, "Normal", "Created", "made a volume")
    await eventually(lambda: recorder.client.patched)
    assert [series["count"] for series in recorder.client.patched] == [53]
    assert recorder.client.patched[0]["lastObservedTime"] > recorder.client.created[0]["eventTime"]
    assert len(recorder.client.created) == 1


async def test_second_event_begins_a_series_at_once(recorder, eventually):
    slow = EventRecorder(lambda: recorder.client, component="builder")
    for count in (1, 2, 3, 4):
        slow.event(POD, "Normal", "Created", "again and again")
        if count <= 2:
            await eventually(lambda count=count: len(recorder.client.created) + len(recorder.client.patched) == count)
    slow.event(POD, "Normal", "Resized", "another thing")
    await eventually(lambda: len(recorder.client.created) == 2)
    # The third and the fourth event wait until the series has ended, or is old.
    assert [series["count"] for series in recorder.client.patched] == [2]
    await slow.aclose()


async def test_continued_series_is_posted_at_intervals(recorder, eventually):
    made = EventRecorder(lambda: recorder.client, component="builder", series_posted_seconds=0.05)

    def continued():
        made.event(POD, "Normal", "Created", "again and again")
        return [series["count"] for series in recorder.client.patched]

    counts = await eventually(continued, lambda counts: len(counts) >= 3)
    assert counts == sorted(set(counts))
    await made.aclose()


async def test_event_that_the_server_has_forgotten_is_created_again(recorder, eventually):
    async def patch(resource, name, body, *, namespace):
        raise NotFound(404, "NotFound", "no such event")

    recorder.client.patch = patch
    recorder.event(POD, "Normal", "Created", "made")
    await eventually(lambda: recorder.client.created)
    recorder.event(POD, "Normal", "Created", "made")
    await eventually(lambda: len(recorder.client.created) == 2)
    assert recorder.client.created[1]["series"]["count"] == 2


@pytest.mark.parametrize(("own", "count"), [(False, 8), (True, None)])
async def test_event_of_another_process_is_continued(recorder, eventually, own, count):
    """The Event exists after a restart, and may exist after a request without a response."""
    asked = asyncio.Event()

    async def create(resource, body):
        recorder.client.created.append(body)
        raise AlreadyExists(409, "AlreadyExists", "it exists")

    async def get(resource, name, *, namespace):
        asked.set()
        known = recorder.client.created[0]
        return known if own else {**known, "eventTime": "2026-01-01T00:00:00.000000Z", "series": {"count": 7}}

    recorder.client.create, recorder.client.get = create, get
    recorder.event(POD, "Normal", "Created", "made")
    await asked.wait()
    if count is not None:
        await eventually(lambda: recorder.client.patched)
        assert recorder.client.patched[0]["count"] == count
    else:
        await eventually(lambda: recorder._task is None)
        assert recorder.client.patched == []


async def test_similar_events_above_ten_are_aggregated(recorder, eventually):
    for number in range(30):
        recorder.event(POD, "Warning", "Full", f"{number} bytes are left")
    recorder.event(POD, "Warning", "Broken", "another reason")
    await eventually(lambda: len(recorder.client.created) == 12)
    notes = [body["note"] for body in recorder.client.created]
    assert notes[:10] == [f"{number} bytes are left" for number in range(10)]
    assert notes[10:] == ["(combined from similar events): 10 bytes are left", "another reason"]
    assert recorder.client.created[10]["series"]["count"] == 20


def test_similar_events_are_separate_again_after_ten_minutes():
    similar = SimilarEvents()
    for number in range(10):
        assert similar.note("group", str(number), now=0).text == str(number)
    assert similar.note("group", "10", now=1).text.endswith(": 10")
    assert similar.note("other", "10", now=1).text == "10"
    assert similar.note("group", "3", now=2).text == "3"
    assert similar.note("group", "11", now=603).text == "11"


async def test_recorder_posts_no_event_of_a_fenced_reconcile(recorder, eventually):
    """A coordinator such as `Leader` refuses writes of reconciles."""
    recorder.client.of_reconciles = ClusterNotOwned("this process does not lead")
    with cluster_context("a"):
        recorder.event(POD, "Normal", "Created", "said in a reconcile")
    recorder.event(POD, "Normal", "Created", "said by a webhook")
    await eventually(lambda: recorder.client.created)
    assert [body["note"] for body in recorder.client.created] == ["said by a webhook"]


async def test_events_above_a_thousand_are_dropped_and_logged_rarely(recorder, caplog):
    recorder.client.gate.clear()
    caplog.set_level(logging.WARNING)
    for number in range(3000):
        pod = {**POD, "metadata": {"name": f"web-{number}", "namespace": "shop"}}
        recorder.event(pod, "Normal", "Created", "made a volume")
    assert 10 < len(caplog.records) < 13
    assert "1000 others wait" in caplog.text


async def test_recorder_drops_refused_events_and_retries_in_an_outage(recorder, eventually, caplog, monkeypatch):
    from kplane.provider import Unreachable
    from kplane.provider.errors import Forbidden

    recorder.client.refusal = Forbidden(403, "Forbidden", "may not create events")
    recorder.event(POD, "Normal", "Created", "one")
    await eventually(lambda: "may not create events" in caplog.text)
    recorder.client.refusal = Unreachable("no", kind="connect")
    recorder.event(POD, "Normal", "Created", "two")
    await eventually(lambda: recorder.client.refused == ["one", "two"])
    recorder.client.refusal = None
    await eventually(lambda: [body["note"] for body in recorder.client.created] == ["two"])


@pytest.mark.parametrize(
    ("about", "kind", "reason"),
    [
        (POD, "Info", "Created"),
        ({"metadata": {"name": "a"}}, "Normal", "Created"),
        ({**POD, "metadata": {}}, "Normal", "Created"),
        (POD, "Normal", ""),
    ],
)
async def test_recorder_refuses_an_invalid_event(recorder, about, kind, reason):
    with pytest.raises(ProviderError):
        recorder.event(about, kind, reason, "made")


@pytest.mark.parametrize("component", ["", "two words", "-a", "Example.com/a", "a" * 64])
def test_recorder_refuses_a_component_that_is_no_qualified_name(component):
    with pytest.raises(ProviderError, match="no qualified name"):
        EventRecorder(Asking, component=component)


async def test_closed_cluster_keeps_no_recorders():
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
async def test_api_server_keeps_one_series_with_its_count(client, namespace, eventually):
    about = await client.create(CONFIG_MAPS, {"metadata": {"name": "web"}}, namespace=namespace)
    for run in range(2):  # the second run reports like another process
        recorder = EventRecorder(lambda: client, component="builder")
        recorder.event(about, "Warning", "Full", "no room", action="Store")
        recorder.event(await client.get(NAMESPACES, "default"), "Normal", "Seen", f"run {run} of {namespace}")

        async def count(expected=run + 1):
            # The test reads core/v1 Events: the API server stores both API groups of Event as the same objects.
            found = (await client.list(EVENTS, namespace=namespace)).items
            seen = [(event["reason"], event["action"], (event.get("series") or {}).get("count", 1)) for event in found]
            assert seen == [("Full", "Store", expected)], json.dumps(found)
            told = (await client.list(EVENTS, namespace="default")).items
            return any(event["message"] == f"run {expected - 1} of {namespace}" for event in told)

        await eventually(count)
        await recorder.aclose()
