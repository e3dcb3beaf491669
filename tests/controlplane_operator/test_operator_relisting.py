"""Resync: maximum age of the last list of the management cluster before the operator is not ready."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from kplane.controlplane_operator.kinds import CONTROL_PLANE_ENDPOINTS, CONTROL_PLANE_REGISTRATIONS
from kplane.controlplane_operator.watch import feeds as resync
from kplane.controlplane_operator.watch.feeds import Resync
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import Client, Resource, Unreachable
from kplane.provider.client.client import ObjectList


class Server:
    """Fake API server with objects of a test, which can be unreachable."""

    def __init__(self) -> None:
        self.away = False
        self.objects: dict[Resource, list[dict[str, Any]]] = {}

    async def list(self, resource: Resource, **_: Any) -> ObjectList:
        if self.away:
            raise Unreachable("nobody there", kind="connect")
        return ObjectList(self.objects.get(resource, []), resource_version="1")


async def test_problem_reports_list_older_than_five_minutes(eventually: Any) -> None:
    server, now = Server(), 1000.0
    feed = Resync(cast("Client", server), stores=Stores(), label_selectors={}, clock=lambda: now)
    assert feed.problem() == "the management cluster was not listed yet"
    task = asyncio.create_task(feed.run())
    await feed.synced.wait()
    # The limit is longer than two periods, so a single list may fail.
    assert 2 * 1.2 * resync._PERIOD_SECONDS < 299
    now += 299
    assert feed.problem() is None
    server.away = True
    feed.ask()
    now += 2
    problem = feed.problem() or ""
    assert problem.startswith("the management cluster could not be listed since 20")
    assert "301 s ago" in problem
    now += 7200
    assert "7501 s ago" in (feed.problem() or "")
    server.away = False
    await eventually(feed.problem, lambda told: told is None)
    task.cancel()


async def test_invalid_object_is_logged_and_does_not_end_resync(caplog: pytest.LogCaptureFixture) -> None:
    """Such an object was stored before a rule of the CRD, and the operator finds it at each start."""

    def endpoint(name: str, spec: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": {"name": name, "resourceVersion": "1"}, "spec": spec}

    server, stores = Server(), Stores()
    server.objects[CONTROL_PLANE_ENDPOINTS] = [
        endpoint("bad", {"credentialsSecretRef": "a name"}),
        endpoint("good", {"credentialsSecretRef": {"namespace": "ns", "name": "own"}}),
    ]
    server.objects[CONTROL_PLANE_REGISTRATIONS] = [endpoint("reg", {"controlPlaneRef": {"name": "cp"}})]
    feed = Resync(cast("Client", server), stores=stores, label_selectors={})
    task = asyncio.create_task(feed.run())
    await asyncio.wait({task, asyncio.ensure_future(feed.synced.wait())}, return_when=asyncio.FIRST_COMPLETED)
    assert not task.done(), task.exception()
    assert [obj["metadata"]["name"] for obj in stores.endpoints.by("credentials", "ns/own")] == ["good"]
    assert [obj["metadata"]["name"] for obj in stores.registrations.by("control plane", "cp")] == ["reg"]
    assert "failed to index ControlPlaneEndpoint bad by 'credentials'" in caplog.messages
    # The next list succeeds as well.
    await feed.anew()
    task.cancel()
