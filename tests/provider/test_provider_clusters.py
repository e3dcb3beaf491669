"""A fleet: each name has at most one engagement, which closes before the next engagement opens."""

from __future__ import annotations

import asyncio
import collections
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kplane.provider import Cluster, ClusterConfig, ClusterNotFound, ClusterNotReady, ProviderError
from kplane.provider.fleet.clusters import Clusters


def cluster(name="a", *, server="https://127.0.0.1:1", token="t", **attributes):
    return Cluster(name, config=ClusterConfig(server, token=token), attributes=attributes)


class Recorder:
    """An aware that records its engagements and checks that each name is engaged once at a time."""

    def __init__(self, *, close_seconds=0.0):
        self.close_seconds = close_seconds
        self.log = []
        self.live = {}

    async def engage(self, engagement):
        name = engagement.cluster.name
        assert name not in self.live, f"{name} is engaged twice"
        self.live[name] = engagement
        self.log.append(("open", name, engagement.generation))
        engagement.on_close(lambda: self.close(engagement))
        engagement.spawn(asyncio.sleep(3600), name="work")

    async def close(self, engagement):
        await asyncio.sleep(self.close_seconds)
        name = engagement.cluster.name
        assert self.live.pop(name) is engagement
        self.log.append(("close", name, engagement.generation))


async def test_fleet_adds_replaces_updates_and_removes_clusters(eventually):
    recorder = Recorder()
    clusters = Clusters(awares=[recorder])
    with pytest.raises(ClusterNotFound):
        clusters.get("a")
    await clusters.add_or_replace(cluster())
    await eventually(lambda: "a" in recorder.live)
    first = recorder.live["a"]

    renewed = cluster(token="u")
    await clusters.add_or_replace(renewed)
    assert recorder.live["a"] is first
    assert clusters.get("a") is renewed
    assert await asyncio.wait_for(anext(first.changes()), 60) is renewed

    for moved in (cluster(server="https://127.0.0.1:2"), cluster(server="https://127.0.0.1:2", profile="Full")):
        before = recorder.live["a"]
        await clusters.add_or_replace(moved)
        assert before.closed
        await eventually(lambda: "a" in recorder.live)
        assert recorder.live["a"].generation > before.generation
        assert clusters.get("a") is moved

    await clusters.remove("a")
    await clusters.remove("never there")
    assert recorder.live == {}
    assert clusters.names() == []
    assert clusters.engagements() == []
    await clusters.aclose()
    with pytest.raises(ProviderError, match="closed"):
        await clusters.add_or_replace(cluster())


async def test_slow_close_blocks_only_its_name_and_latest_cluster_wins(eventually):
    recorder = Recorder()
    clusters = Clusters(awares=[recorder])
    go = asyncio.Event()
    await clusters.add_or_replace(cluster("slow"))
    await eventually(lambda: "slow" in recorder.live)
    recorder.live["slow"].on_close(go.wait)

    replacing = [asyncio.create_task(clusters.add_or_replace(cluster("slow", version=str(n)))) for n in range(5)]
    await eventually(lambda: not clusters.engagements())
    with pytest.raises(ClusterNotReady):
        clusters.get("slow")
    await asyncio.wait_for(clusters.add_or_replace(cluster("quick")), 60)
    await eventually(lambda: "quick" in recorder.live)
    assert not any(task.done() for task in replacing)
    go.set()
    await asyncio.gather(*replacing)
    assert clusters.get("slow").attributes == {"version": "4"}
    await eventually(lambda: "slow" in recorder.live)
    assert [entry[0] for entry in recorder.log if entry[1] == "slow"] == ["open", "close", "open"]
    await clusters.aclose()
    assert recorder.live == {}


async def test_late_aware_engages_existing_clusters(eventually):
    clusters = Clusters()
    await clusters.add_or_replace(cluster("a"))
    await clusters.add_or_replace(cluster("b"))
    late = Recorder()
    clusters.add_aware(late)
    await eventually(lambda: set(late.live), lambda names: names == {"a", "b"})
    await clusters.aclose()


class Failing:
    """An aware that starts a task and fails, for a cluster name and a number of times."""

    def __init__(self, name, times):
        self.name, self.left = name, times
        self.undone = []

    async def engage(self, engagement):
        if engagement.cluster.name == self.name:
            engagement.on_close(self.undo)
            task = engagement.spawn(asyncio.sleep(3600), name="left over")
            task.add_done_callback(lambda task: self.undone.append("task"))
            if self.left:
                self.left -= 1
                raise ValueError("not today")

    async def undo(self):
        self.undone.append("callback")


async def test_failing_aware_is_undone_and_retried_without_affecting_others(eventually):
    recorder, failing = Recorder(), Failing("bad", 2)
    clusters = Clusters(awares=[failing, recorder], retry_initial_seconds=0.2)
    await clusters.add_or_replace(cluster("bad"))
    await clusters.add_or_replace(cluster("good"))
    await eventually(lambda: clusters.failure("bad"), lambda why: why == "Failing failed to engage: not today")
    assert clusters.failure("good") is None
    await eventually(lambda: (failing.left, clusters.failure("bad")), lambda seen: seen == (0, None))
    assert failing.undone == ["task", "callback"] * 2
    assert set(recorder.live) == {"bad", "good"}
    await clusters.aclose()
    assert failing.undone == ["task", "callback"] * 3


async def test_hanging_aware_fails_at_engage_timeout(eventually):
    class Hanging:
        async def engage(self, engagement):
            await asyncio.sleep(3600)

    clusters = Clusters(awares=[Hanging()], engage_timeout_seconds=0.05)
    await clusters.add_or_replace(cluster())
    await eventually(lambda: clusters.failure("a"), lambda why: why is not None and "Hanging failed to engage" in why)
    await asyncio.wait_for(clusters.aclose(), 60)


async def test_two_hundred_engagements_leave_no_task_and_no_descriptor(tools):
    # Without a CA the client would load the CAs of the system, which are many.
    authority = tools.Authority().pem

    def reached(name, **attributes):
        config = ClusterConfig("https://127.0.0.1:1", ca_data=authority, token="t")
        return Cluster(name, config=config, attributes=attributes)

    async def dial(engagement):
        with pytest.raises(ProviderError):
            await engagement.cluster.client.probe()
        await asyncio.sleep(3600)

    class Dialling:
        async def engage(self, engagement):
            engagement.spawn(dial(engagement), name="dial")

    def open_descriptors():
        return len(os.listdir("/proc/self/fd"))

    clusters = Clusters(awares=[Dialling()])
    await clusters.add_or_replace(reached("warm"))
    await asyncio.sleep(0.05)
    await clusters.remove("warm")
    tasks, descriptors = asyncio.all_tasks(), open_descriptors()
    for number in range(200):
        name = f"c{number % 7}"
        await clusters.add_or_replace(reached(name, round=str(number)))
        await asyncio.sleep(0.002)
        if number % 3 == 0:
            await clusters.remove(name)
    await clusters.aclose()
    assert asyncio.all_tasks() == tasks
    assert open_descriptors() == descriptors
    assert clusters.names() == []


actions = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "renew", "cancel", "pause"]),
        st.sampled_from("ab"),
        st.integers(0, 2),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(actions)
def test_random_calls_keep_one_engagement_and_apply_the_last_call(taken):
    async def play():
        recorder = Recorder(close_seconds=0.0005)
        clusters = Clusters(awares=[recorder])
        wanted, tasks = {}, []
        for action, name, version in taken:
            if action == "pause":
                await asyncio.sleep(0.0004 * version)
            elif action == "cancel":
                # A cancelled call leaves its desired cluster. The next call for that name applies it.
                if tasks:
                    tasks[-1].cancel()
            elif action == "remove":
                wanted.pop(name, None)
                tasks.append(asyncio.create_task(clusters.remove(name)))
            else:
                token = str(version) if action == "renew" else "t"
                wanted[name] = cluster(name, token=token, version=str(version))
                tasks.append(asyncio.create_task(clusters.add_or_replace(wanted[name])))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        for name in "ab":
            if name in wanted:
                await clusters.add_or_replace(wanted[name])
            else:
                await clusters.remove(name)
        assert clusters.names() == sorted(wanted)
        assert {name: clusters.get(name).attributes for name in wanted} == {
            name: found.attributes for name, found in wanted.items()
        }
        await clusters.aclose()
        assert recorder.live == {}
        state = collections.defaultdict(lambda: "close")
        for event, name, _ in recorder.log:
            assert state[name] != event
            state[name] = event
        generations = [generation for event, _, generation in recorder.log if event == "open"]
        assert len(set(generations)) == len(generations)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(play())
