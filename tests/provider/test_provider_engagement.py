"""Engagements: their tasks, callbacks and clients end with them."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kplane.provider import LOCAL, Client, Cluster, ClusterConfig, Engagement, ProviderError


def cluster(name="a", **attributes):
    return Cluster(name, config=ClusterConfig("https://127.0.0.1:1"), attributes=attributes)


async def test_close_cancels_tasks_then_runs_callbacks_in_reverse():
    engagement = Engagement(cluster(), generation=1)
    order = []

    async def work(name):
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            order.append(name)

    async def callback(name):
        order.append(name)

    tasks = [engagement.spawn(work(f"task {number}"), name=str(number)) for number in range(2)]
    engagement.on_close(lambda: callback("first"))
    engagement.on_close(lambda: callback("second"))
    await asyncio.sleep(0)
    await asyncio.gather(engagement.aclose(), engagement.aclose())
    assert sorted(order[:2]) == ["task 0", "task 1"]
    assert order[2:] == ["second", "first"]
    assert engagement.closed
    assert all(task.done() for task in tasks)
    await engagement.aclose()
    with pytest.raises(ProviderError, match="has ended"):
        engagement.spawn(work("late"), name="late")
    with pytest.raises(ProviderError, match="has ended"):
        engagement.on_close(lambda: callback("late"))


async def test_inner_engagement_closes_before_outer_or_alone():
    outer = Engagement(cluster(), generation=1)
    order = []

    async def callback(name):
        order.append(name)

    outer.on_close(lambda: callback("outer"))
    inner, alone = outer.inner(), outer.inner()
    inner.on_close(lambda: callback("inner"))
    alone.on_close(lambda: callback("alone"))
    await alone.aclose()
    assert order == ["alone"]
    assert not outer.closing
    await outer.aclose()
    assert order == ["alone", "inner", "outer"]


async def test_task_may_close_its_own_engagement():
    engagement = Engagement(cluster(), generation=1)
    task = engagement.spawn(engagement.aclose(), name="end")
    await asyncio.wait([task], timeout=5)
    await asyncio.wait_for(engagement.aclose(), 60)
    assert engagement.closed


async def test_close_continues_when_its_caller_is_cancelled(eventually):
    engagement = Engagement(cluster(), generation=1)
    go = asyncio.Event()
    engagement.on_close(go.wait)
    closing = asyncio.create_task(engagement.aclose())
    await asyncio.sleep(0.01)
    closing.cancel()
    await asyncio.wait([closing])
    assert not engagement.closed
    go.set()
    await eventually(lambda: engagement.closed)


@pytest.mark.parametrize(("name", "title"), [("a", "cluster a"), (LOCAL, "local cluster")])
async def test_failure_of_task_or_callback_is_logged_and_isolated(caplog, name, title):
    engagement = Engagement(cluster(name), generation=1)

    async def fail():
        raise ValueError("odd")

    ended = []

    async def fine():
        ended.append("fine")

    engagement.on_close(fine)
    engagement.on_close(fail)
    task = engagement.spawn(fail(), name="failing")
    await asyncio.wait([task])
    await engagement.aclose()
    assert ended == ["fine"]
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert messages == [f"task '{title}: failing' failed", f"{title}: a callback failed at the end of its engagement"]


async def test_changes_yield_latest_cluster_without_gaps():
    engagement = Engagement(cluster(), generation=1)
    inner = engagement.inner()
    one, two, three = cluster(v="1"), cluster(v="2"), cluster(v="3")
    await engagement.update(one)
    await engagement.update(two)
    changes = inner.changes()
    assert await asyncio.wait_for(anext(changes), 60) is two
    waiting = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    await engagement.update(three)
    assert await asyncio.wait_for(waiting, 60) is three
    assert inner.cluster is three
    await changes.aclose()
    await engagement.aclose()


async def test_client_survives_update_and_closes_with_engagement():
    engagement = Engagement(cluster(), generation=1)
    client = engagement.cluster.client
    assert isinstance(client, Client)
    await engagement.update(cluster())
    assert engagement.cluster.client is client
    await engagement.aclose()
    with pytest.raises(ProviderError, match="closed"):
        await client.probe()


def test_repr_of_cluster_has_no_credentials():
    shown = repr(Cluster("a", config=ClusterConfig("https://h", token="s3cret"), credentials={"sa.key": b"s3cret"}))
    assert "s3cret" not in shown
