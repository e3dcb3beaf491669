"""A status is written to the object that it is about, however much happens to that object meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from kplane.api import ControlPlane
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.status.events import Events
from kplane.controlplane_operator.status.writer import StatusWriter
from kplane.controlplane_operator.watch.cache import Store
from kplane.embedded.handle import Handle
from kplane.provider import Client, ClusterConfig, Conflict

pytestmark = pytest.mark.integration


@dataclass
class Desk:
    """Where statuses are written: what is known of the objects, and what there really is."""

    client: Client
    writer: StatusWriter
    store: Store

    async def create(self) -> ControlPlane:
        body = {"metadata": {"name": "subject"}, "spec": {"deletionPolicy": "Retain"}}
        return ControlPlane.model_validate(await self.client.create(CONTROL_PLANES, body))

    async def write(self, current: ControlPlane, *, version: str, only_as_seen: bool = False) -> None:
        status = current.status.model_copy(update={"version": version})
        await self.writer.write(self.store, current, status=status, only_as_seen=only_as_seen)

    async def status(self) -> dict[str, Any]:
        return dict((await self.client.get(CONTROL_PLANES, "subject")).get("status", {}))


@pytest.fixture
async def desk(api_server: Handle) -> AsyncIterator[Desk]:
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig)) as client:
        yield Desk(client, StatusWriter(client, events=Events(client)), Store(CONTROL_PLANES))
        await client.delete(CONTROL_PLANES, "subject")


@pytest.mark.parametrize("seen", ["before", "after", "never"])
@pytest.mark.parametrize("only_as_seen", [False, True])
async def test_the_next_object_of_the_name_gets_nothing_of_it(desk: Desk, seen: str, *, only_as_seen: bool) -> None:
    former = await desk.create()
    if seen != "never":
        desk.store.apply(await desk.client.get(CONTROL_PLANES, "subject"))
    await desk.client.delete(CONTROL_PLANES, "subject")
    await desk.create()
    if seen == "after":
        desk.store.apply(await desk.client.get(CONTROL_PLANES, "subject"))
    try:
        await desk.write(former, version="v1.36.3", only_as_seen=only_as_seen)
    except Conflict:
        assert only_as_seen
    assert await desk.status() == {}


async def test_what_somebody_changes_meanwhile_is_no_obstacle(desk: Desk) -> None:
    current = await desk.create()
    desk.store.apply(await desk.client.get(CONTROL_PLANES, "subject"))
    await desk.client.patch(CONTROL_PLANES, "subject", {"metadata": {"labels": {"team": "blue"}}})
    with pytest.raises(Conflict):
        await desk.write(current, version="v1.36.3", only_as_seen=True)
    await desk.write(current, version="v1.36.3")
    assert (await desk.status())["version"] == "v1.36.3"


async def test_what_is_gone_is_left_alone(desk: Desk) -> None:
    current = await desk.create()
    await desk.client.delete(CONTROL_PLANES, "subject")
    await desk.write(current, version="v1.36.3")
    assert desk.store.get(("", "subject")) is None
    await desk.create()
