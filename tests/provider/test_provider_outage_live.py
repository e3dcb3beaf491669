"""A controller whose kube-apiserver cannot be reached for a while."""

from __future__ import annotations

import asyncio
import dataclasses
from urllib.parse import urlsplit

import pytest

from kplane.provider import Cluster, Manager, Request, controller
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.controllers.builder import predicates
from kplane.provider.providers.clusters import ClustersProvider

pytestmark = pytest.mark.integration

REQUESTS = 30
OUTAGE_SECONDS = 30.0
TARGET_SECONDS = 5.0


class Way:
    """A way to an API server that can be closed and opened: it forwards the bytes of each connection."""

    def __init__(self, target):
        self._target = target
        self._server = None
        self._connections = set()
        self.port = 0

    async def open(self):
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self):
        self._server.close()
        connections = tuple(self._connections)
        for each in connections:
            each.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _forward(self, reader, writer):
        self._connections.add(asyncio.current_task())
        other = None
        try:
            far_reader, other = await asyncio.open_connection(*self._target)
            await asyncio.gather(self._copy(reader, other), self._copy(far_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(asyncio.current_task())
            for each in filter(None, (writer, other)):
                each.transport.abort()

    @staticmethod
    async def _copy(reader, writer):
        while part := await reader.read(65536):
            writer.write(part)
            await writer.drain()
        writer.close()


async def test_all_requests_are_reconciled_soon_after_an_outage(client, namespace, eventually):
    loop, done, failures = asyncio.get_running_loop(), {}, []
    found = urlsplit(client.config.server)
    way = Way((found.hostname, found.port))
    await way.open()
    cluster = Cluster("a", config=dataclasses.replace(client.config, server=f"https://127.0.0.1:{way.port}"))
    fleet = ClustersProvider()
    manager = Manager(None, fleet, workers=4)

    async def reconcile(request):
        try:
            await cluster.client.patch(
                CONFIG_MAPS, request.name, {"data": {"seen": "yes"}}, namespace=request.namespace
            )
        except Exception:
            failures.append(request)
            raise
        done[request] = loop.time()

    def ours(event):
        return event.namespace == namespace and event.name.startswith("of-test-")

    built = controller(manager).for_(CONFIG_MAPS, predicates(ours)).build(reconcile)
    requests = [Request("a", namespace, f"of-test-{number}") for number in range(REQUESTS)]
    for each in requests:
        await client.create(CONFIG_MAPS, {"metadata": {"name": each.name}}, namespace=namespace)
    async with manager:
        await fleet.add(cluster)
        await eventually(lambda: len(done), lambda count: count == REQUESTS)
        await eventually(lambda: built.queue.idle)
        await way.close()
        done.clear()
        for each in requests:
            built.queue.add(each)
        await eventually(lambda: built.queue.suspended(), lambda names: names == ["a"])
        down = loop.time()
        await eventually(lambda: loop.time() - down, lambda seconds: seconds >= OUTAGE_SECONDS)
        assert done == {}
        back = loop.time()
        await way.open()
        await eventually(lambda: len(done), lambda count: count == REQUESTS)
        assert max(done.values()) - back <= TARGET_SECONDS
        assert len(failures) <= 3 * REQUESTS
    await way.close()
