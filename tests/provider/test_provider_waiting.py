"""Reconciles that wait for a response, and release their worker meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from kplane.provider import Client, Cluster, ClusterConfig, Unreachable
from kplane.provider.aio.overflow import unanswered
from kplane.provider.cluster.cluster import Wiring
from kplane.provider.controllers.queue import FairQueue
from kplane.provider.controllers.workers import Controller
from tests.silent_server import silent_server


@contextlib.asynccontextmanager
async def running(controller: Controller[str]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(controller.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


class Work:
    """A reconcile function: keys with the prefix `silent` wait until `answer` is set; others return at once."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.done: list[str] = []
        self.answer = asyncio.Event()
        self.children = False

    async def reconcile(self, key: str) -> None:
        self.begun.append(key)
        if key.startswith("silent"):
            await (asyncio.create_task(self._wait()) if self.children else self._wait())
        self.done.append(key)

    async def _wait(self) -> None:
        with unanswered(patience_seconds=0.01):
            await self.answer.wait()


@pytest.mark.parametrize("children", [False, True], ids=["itself", "in a task of its own"])
async def test_waiting_reconciles_occupy_no_worker(eventually: Callable[..., Any], children: bool) -> None:
    work, queue = Work(), FairQueue[str]()
    work.children = children
    controller = Controller("test", work.reconcile, queue=queue, workers=2, waiting=5)
    async with running(controller):
        for number in range(5):
            queue.add(f"silent-{number}")
        queue.add("good")
        # The last silent key may still occupy a worker when the good key is done.
        await eventually(lambda: (work.done, controller.waiting), lambda seen: seen == (["good"], 5))
        work.answer.set()
        await eventually(lambda: (len(work.done), queue.idle), lambda seen: seen == (6, True))
        assert controller.waiting == 0


async def test_reconciles_above_the_waiting_limit_keep_their_worker(eventually: Callable[..., Any]) -> None:
    queue = FairQueue[str]()
    answers = {name: asyncio.Event() for name in ("silent-0", "silent-1", "silent-2")}
    done: list[str] = []

    async def reconcile(key: str) -> None:
        if key in answers:
            with unanswered(patience_seconds=0.01):
                await answers[key].wait()
        done.append(key)

    controller = Controller("test", reconcile, queue=queue, workers=1, waiting=2)
    async with running(controller):
        for name in (*answers, "good"):
            queue.add(name)
        await eventually(lambda: (controller.waiting, len(queue)), lambda seen: seen == (2, 1))
        # The worker is with the third key. When the first key ends, the third key waits, and the worker is free.
        answers["silent-0"].set()
        await eventually(lambda: done, lambda found: found == ["silent-0", "good"])


async def test_waiting_key_is_reconciled_again_only_after_its_end(eventually: Callable[..., Any]) -> None:
    work, queue = Work(), FairQueue[str]()
    controller = Controller("test", work.reconcile, queue=queue, workers=2, waiting=5)
    async with running(controller):
        queue.add("silent")
        await eventually(lambda: controller.waiting, lambda count: count == 1)
        queue.add("silent")
        queue.add("good")
        await eventually(lambda: work.done, lambda done: done == ["good"])
        assert work.begun == ["silent", "good"]
        work.answer.set()
        await eventually(lambda: (work.done, queue.idle), lambda seen: seen == (["good", "silent", "silent"], True))


async def test_controller_end_cancels_waiting_reconciles(eventually: Callable[..., Any]) -> None:
    ended: list[str] = []
    queue = FairQueue[str]()

    async def reconcile(key: str) -> None:
        try:
            with unanswered(patience_seconds=0.01):
                await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append(key)

    controller = Controller("test", reconcile, queue=queue, workers=1, waiting=5)
    async with running(controller):
        queue.add("silent")
        await eventually(lambda: controller.waiting, lambda count: count == 1)
    assert ended == ["silent"]


async def test_long_reconcile_releases_its_worker(
    eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kplane.provider.controllers.workers._LONG_SECONDS", 0.01)
    queue, pages, done = FairQueue[str](), asyncio.Event(), list[str]()

    async def reconcile(key: str) -> None:
        while key == "endless" and not pages.is_set():
            with unanswered():
                await asyncio.sleep(0.001)
        done.append(key)

    controller = Controller("test", reconcile, queue=queue, workers=1, waiting=1)
    async with running(controller):
        for key in ("endless", "good"):
            queue.add(key)
        await eventually(lambda: done, lambda found: found == ["good"])
        pages.set()
        await eventually(lambda: done, lambda found: found == ["good", "endless"])


async def test_reconcile_deadline_applies_while_waiting(eventually: Callable[..., Any]) -> None:
    work, queue = Work(), FairQueue[str]()
    controller = Controller("test", work.reconcile, queue=queue, workers=1, waiting=5, timeout_seconds=0.05)
    async with running(controller):
        queue.add("silent")
        await eventually(lambda: queue.failures("silent"), lambda count: count >= 2)


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a server that accepts connections and never responds."""
    with silent_server() as server:
        yield server.url


@pytest.mark.parametrize("keeps_worker", [False, True], ids=["a tenant's", "the management cluster's"])
async def test_client_releases_the_worker_unless_keeps_worker(
    eventually: Callable[..., Any], silent: str, keeps_worker: bool
) -> None:
    queue = FairQueue[str]()
    failed: list[tuple[str, bool]] = []
    waiting: list[int] = []

    async def reconcile(key: str) -> None:
        async with Client(ClusterConfig(server=silent), timeout_seconds=0.7, keeps_worker=keeps_worker) as client:
            try:
                await client.probe()
            except Unreachable as error:
                waiting.append(controller.waiting)
                failed.append((key, error.timed_out))

    controller = Controller("test", reconcile, queue=queue, workers=1, waiting=1)
    async with running(controller):
        queue.add("one")
        await eventually(lambda: failed, lambda found: found == [("one", True)])
    assert waiting == [0 if keeps_worker else 1]


@pytest.mark.parametrize("name", ["", "acme"], ids=["local", "of the fleet"])
async def test_only_the_local_cluster_keeps_workers(eventually: Callable[..., Any], silent: str, name: str) -> None:
    cluster, queue, waiting = Cluster(name, config=ClusterConfig(server=silent)), FairQueue[str](), list[int]()
    cluster.wire(Wiring(local_keeps_worker=True, timeout_seconds=0.7))

    async def reconcile(_: str) -> None:
        try:
            await cluster.client.probe()
        except Unreachable:
            waiting.append(controller.waiting)

    controller = Controller("test", reconcile, queue=queue, workers=1, waiting=1)
    async with contextlib.aclosing(cluster), running(controller):
        queue.add("one")
        await eventually(lambda: waiting, lambda found: found == [1 if name else 0])


async def test_unanswered_has_no_effect_outside_a_reconcile() -> None:
    timers = asyncio.get_running_loop()._scheduled
    with unanswered(patience_seconds=3600.0):
        assert timers == [], "nothing is there to be let go of"
