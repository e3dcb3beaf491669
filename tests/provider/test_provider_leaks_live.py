"""Engagements that come and go leak no task, socket or memory."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from kplane.provider import Cluster, ClusterConfig, Manager, Request
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.cluster.engagement import Engagement
from kplane.provider.controllers.builder import controller
from kplane.provider.providers.clusters import ClustersProvider

pytestmark = pytest.mark.integration

_AT_ONCE = 20


def _rss_kib() -> int:
    gc.collect()
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def _sockets() -> int:
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found += os.readlink(entry).startswith("socket:")
        except OSError:
            continue
    return found


class Careless:
    """An aware whose callback raises the CancelledError of another task, as `task.cancel(); await task` does."""

    def __init__(self) -> None:
        self.ended = 0

    async def engage(self, engagement: Engagement) -> None:
        task = asyncio.create_task(asyncio.Event().wait(), name=f"cluster {engagement.cluster.name}: careless")

        async def end() -> None:
            self.ended += 1
            task.cancel()
            await task

        engagement.on_close(end)


class Fleet:
    """Clusters with the same API server. Each cluster is engaged, reconciled, and then removed."""

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.provider = ClustersProvider()
        self.careless = Careless()
        self.manager = Manager(None, self.provider, awares=[self.careless], name="test")
        self.reconciled: dict[str, asyncio.Event] = {}
        self.controller = controller(self.manager).for_(CONFIG_MAPS).with_options(workers=8).build(self.reconcile)

    async def reconcile(self, request: Request) -> None:
        assert request.cluster in self.reconciled, f"{request} is of a cluster that is gone"
        self.reconciled[request.cluster].set()

    async def cycle(self, name: str) -> None:
        self.reconciled[name] = asyncio.Event()
        await self.provider.add(Cluster(name, config=self.config))
        async with asyncio.timeout(60):
            await self.reconciled[name].wait()
        await self.provider.remove(name)
        del self.reconciled[name]
        assert name not in self.controller.clusters
        assert self.controller.queue.depth(name) == 0
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith(f"cluster {name}:")]

    async def cycles(self, label: str, count: int) -> None:
        for begin in range(0, count, _AT_ONCE):
            await asyncio.gather(*(self.cycle(f"{label}-{begin + number}") for number in range(_AT_ONCE)))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("count", "warm"), [(60, 40), pytest.param(1000, 200, marks=pytest.mark.slow)], ids=["a few", "a thousand"]
)
async def test_engagements_leak_no_task_socket_or_memory(
    api_server: Any, caplog: pytest.LogCaptureFixture, count: int, warm: int
) -> None:
    """Criterion 68: a removal returns after all tasks of the cluster end. 1,000 removals leak no resource."""
    # Otherwise pytest keeps a log record with its traceback for each careless callback.
    caplog.set_level(logging.CRITICAL, logger="kplane.provider.cluster.engagement")
    fleet = Fleet(ClusterConfig.load(api_server.admin_kubeconfig))
    await asyncio.sleep(0)
    outside = _sockets()
    async with fleet.manager:
        await fleet.cycles("warm", warm)
        tasks, threads, rss, sockets = len(asyncio.all_tasks()), threading.active_count(), _rss_kib(), _sockets()
        await fleet.cycles("measured", count)
        assert len(asyncio.all_tasks()) <= tasks
        assert threading.active_count() <= threads
        assert _sockets() <= sockets
        assert fleet.careless.ended == warm + count
        assert fleet.controller.stats.by_cluster == {}
        # A thousand engagements of 100 KiB each would be 100 MiB.
        assert _rss_kib() - rss < 4096
    assert len(asyncio.all_tasks()) == 1
    assert _sockets() <= outside
