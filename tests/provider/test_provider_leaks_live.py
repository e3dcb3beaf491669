"""What a fleet that comes and goes leaves behind: nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from provider import CONFIG_MAPS, Cluster, ClusterConfig, Manager, Request
from provider.builder import controller
from provider.providers.clusters import ClustersProvider

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


class Fleet:
    """Clusters that are all the same API server, each engaged until its objects were reconciled, and then removed."""

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.provider = ClustersProvider()
        self.manager = Manager(None, self.provider)
        self.reconciled: dict[str, asyncio.Event] = {}
        self.controller = (
            controller(self.manager).for_(CONFIG_MAPS).with_options(max_concurrent=8).build(self.reconcile)
        )

    async def reconcile(self, request: Request) -> None:
        assert request.cluster in self.reconciled, f"{request} is of a cluster that is gone"
        self.reconciled[request.cluster].set()

    async def cycle(self, name: str) -> None:
        self.reconciled[name] = asyncio.Event()
        await self.provider.add(Cluster(name, config=self.config))
        async with asyncio.timeout(30):
            await self.reconciled[name].wait()
        await self.provider.remove(name)
        del self.reconciled[name]
        assert name not in self.controller.clusters
        assert self.controller.queue.depth(name) == 0
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith(f"{name}:")]

    async def cycles(self, label: str, count: int) -> None:
        for begin in range(0, count, _AT_ONCE):
            await asyncio.gather(*(self.cycle(f"{label}-{begin + number}") for number in range(_AT_ONCE)))


@pytest.mark.timeout(300)
async def test_a_thousand_engagements_leave_no_task_no_socket_and_no_memory(api_server: Any) -> None:
    """Criterion 68: a removal returns when nothing of the cluster lives, and a thousand of them cost nothing."""
    fleet = Fleet(ClusterConfig.load(api_server.admin_kubeconfig))
    async with fleet.manager:
        await fleet.cycles("warm", 200)
        tasks, threads, rss = len(asyncio.all_tasks()), threading.active_count(), _rss_kib()
        await fleet.cycles("measured", 1000)
        assert len(asyncio.all_tasks()) == tasks
        assert threading.active_count() <= threads
        # One idle connection may be kept for whoever comes next.
        assert _sockets() <= _AT_ONCE + 3
        assert fleet.controller.stats.by_cluster == {}
        # 1,000 engagements of 100 KiB each would be 100 MiB.
        assert _rss_kib() - rss < 4096
    assert len(asyncio.all_tasks()) == 1
