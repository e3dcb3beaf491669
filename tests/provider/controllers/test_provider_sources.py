"""Sources without a cluster."""

from __future__ import annotations

import asyncio
import collections

import pytest

from kplane.provider import Manager, ProviderError, Request
from kplane.provider.aio.backoff import Backoff
from kplane.provider.controllers.builder import controller
from kplane.provider.controllers.sources import Channel, Poll


async def test_raw_sources_run_without_clusters_and_restart_on_failure(work, eventually, monkeypatch):
    monkeypatch.setattr(
        "kplane.provider.aio.running.Backoff", lambda **_: Backoff(initial_seconds=0.01, maximum_seconds=0.01)
    )
    channel, asked = Channel(), []

    async def ask():
        asked.append(1)
        if len(asked) == 2:
            raise ValueError("odd")
        return [Request("", "polled", str(len(asked)))]

    class Fails:
        async def run(self, add):
            add(Request("", "failing", "x"))
            raise ValueError("odd")

    manager = Manager(None, name="test")
    channel.put(Request("", "early", "x"))
    channel.put(Request("", "early", "x"))
    built = controller(manager).named("x").watches_raw(channel).watches_raw(Poll(ask, every_seconds=0.02))
    built = built.watches_raw(Fails()).with_filter(lambda event: False).build(work.reconcile)
    async with manager:
        await eventually(lambda: len(asked), lambda count: count >= 4)
        await eventually(lambda: collections.Counter(work.asked)[Request("", "failing", "x")], lambda count: count > 1)
        channel.put(Request("", "late", "x"))
        late = Channel()
        built.watch(late)
        late.put(Request("", "later", "x"))
        await eventually(lambda: Request("", "later", "x") in work.asked)
    counts = collections.Counter(request.namespace for request in work.asked)
    assert counts["early"] == counts["late"] == counts["later"] == 1
    assert counts["polled"] >= 2


async def test_channel_delays_requests_and_keeps_the_shortest_delay_of_early_ones(work, eventually):
    channel, early, late = Channel(), Request("", "ns", "early"), Request("", "ns", "late")
    for seconds in (600.0, 0.01, 600.0):
        channel.put(early, seconds)
    assert channel.waiting == {early: 0.01}
    manager = Manager(None, name="test")
    controller(manager).named("x").watches_raw(channel).build(work.reconcile)
    async with manager:
        await eventually(lambda: work.asked, lambda found: found == [early])
        channel.put(late, 600.0)
        channel.put(late, 0.01)
        await eventually(lambda: work.asked, lambda found: found == [early, late])


async def test_failed_reconciles_are_reported_with_their_errors(eventually):
    reported = []

    async def reconcile(request):
        if request.name == "slow":
            await asyncio.sleep(600.0)
        raise ValueError("odd")

    async def report(request, error):
        reported.append((request.name, type(error)))
        raise KeyError("its own failure is logged")

    channel = Channel()
    for name in ("bad", "slow"):
        channel.put(Request("", "ns", name))
    manager = Manager(None, name="test")
    builder = controller(manager).named("x").watches_raw(channel)
    builder.with_options(on_failure=report, timeout_seconds=0.05, workers=2).build(reconcile)
    async with manager:
        await eventually(lambda: set(reported), lambda found: found == {("bad", ValueError), ("slow", TimeoutError)})


def test_poll_refuses_an_interval_of_zero():
    with pytest.raises(ProviderError, match="above 0"):
        Poll(None, every_seconds=0)
