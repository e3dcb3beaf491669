"""A status is written to the object that it is about, however much happens to that object meanwhile."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from kplane.api import Condition, ControlPlane, ControlPlaneEndpoint
from kplane.controlplane_operator.kinds import CONTROL_PLANE_ENDPOINTS, CONTROL_PLANES
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
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client:
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


async def test_a_condition_of_another_type_is_its_writers_alone(desk: Desk) -> None:
    current = await desk.create()

    async def certify(*conditions: dict[str, Any]) -> None:
        body = {"metadata": {"name": "subject"}, "status": {"conditions": [*conditions]}}
        await desk.client.apply(CONTROL_PLANES, body, subresource="status", field_manager="auditor", force=False)

    await certify(told("example.com/Certified", "True", "Audited"))
    current = ControlPlane.model_validate(await desk.client.get(CONTROL_PLANES, "subject"))
    await desk.write(current, version="v1.36.3")
    # Were it another one's too, the API server would refuse the change, and keep what is taken back.
    await certify(told("example.com/Certified", "False", "Expired"))
    await certify()
    assert (await desk.status()).get("conditions", []) == []


def told(kind: str, status: str, reason: str, *, at: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": f"so it is: {reason}",
        "lastTransitionTime": at,
    }


class Door:
    """An endpoint whose status has two writers: the operator, and a provider of endpoints."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.store = Store(CONTROL_PLANE_ENDPOINTS)
        self.events = Events(client)
        self.writer = StatusWriter(client, events=self.events)

    async def write(self, url: str, **conditions: str) -> dict[str, dict[str, Any]]:
        """Have the operator write what it found; returns all conditions then, by type."""
        obj = await self.client.get(CONTROL_PLANE_ENDPOINTS, "door")
        self.store.apply(obj)
        current = ControlPlaneEndpoint.model_validate(obj)
        found = [
            Condition.model_validate({**told(kind, *value.split()), "lastTransitionTime": dt.datetime.now(dt.UTC)})
            for kind, value in conditions.items()
        ]
        kept = [each for each in current.status.conditions if each.type not in conditions]
        status = current.status.model_copy(update={"endpoint": url, "conditions": [*kept, *found]})
        await self.writer.write(self.store, current, status=status)
        return await self.conditions()

    async def provide(self, *conditions: dict[str, Any], **status: str) -> None:
        """Have the provider apply this, and no more; raises Conflict if somebody else owns it."""
        body = {"metadata": {"name": "door"}, "status": {"conditions": [*conditions], **status}}
        await self.client.apply(
            CONTROL_PLANE_ENDPOINTS, body, subresource="status", field_manager="acme-doors", force=False
        )

    async def edit(self, *conditions: dict[str, Any]) -> None:
        """Have the provider replace all conditions by an update, as controllers without server-side apply do."""
        status = {"status": {"conditions": [*conditions]}}
        await self.client.patch(CONTROL_PLANE_ENDPOINTS, "door", status, subresource="status")

    async def status(self) -> dict[str, Any]:
        return dict((await self.client.get(CONTROL_PLANE_ENDPOINTS, "door")).get("status", {}))

    async def conditions(self) -> dict[str, dict[str, Any]]:
        return {each["type"]: each for each in (await self.status()).get("conditions", ())}


@pytest.fixture
async def opened(api_server: Handle) -> AsyncIterator[Door]:
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client:
        spec = {"endpoint": "https://door.example"}
        await client.create(CONTROL_PLANE_ENDPOINTS, {"metadata": {"name": "door"}, "spec": spec})
        yield Door(client)
        await client.delete(CONTROL_PLANE_ENDPOINTS, "door")


async def test_a_condition_that_another_manager_applies_stays_its_own_and_freezes_nothing(opened: Door) -> None:
    provided = told("Ready", "True", "Provided")
    await opened.provide(provided)
    found = await opened.write("https://1.example", Ready="False EndpointPending", Reachable="False Refused")
    assert found["Ready"] == provided
    assert found["Reachable"]["reason"] == "Refused"
    assert (found["Contested"]["status"], found["Contested"]["reason"]) == ("True", "OwnedByAnotherManager")
    assert found["Contested"]["message"] == (
        "field manager 'acme-doors' owns condition Ready; the operator found False"
        " (EndpointPending: so it is: EndpointPending)"
    )
    # What is the operator's is kept up, also at an operator that has just begun.
    for url, reason in (("https://2.example", "Answered"), ("https://3.example", "Refused")):
        found = await opened.write(url, Ready="True Reconciled", Reachable=f"True {reason}")
        assert (found["Ready"], found["Reachable"]["reason"]) == (provided, reason)
        assert (await opened.status())["endpoint"] == url
        opened.writer = StatusWriter(opened.client, events=opened.events)
    # The other manager is not held up either: it changes what is its own without force, and takes it back.
    changed = told("Ready", "False", "Leaking")
    await opened.provide(changed, joinEndpoint="https://join.example")
    found = await opened.write("https://4.example", Ready="True Reconciled", Reachable="True Answered")
    assert (found["Ready"], found["Reachable"]["reason"]) == (changed, "Answered")
    await opened.provide()
    assert "Ready" not in await opened.conditions()
    found = await opened.write("https://5.example", Ready="True Reconciled", Reachable="True Answered")
    assert {kind: each["reason"] for kind, each in found.items()} == {"Ready": "Reconciled", "Reachable": "Answered"}
    assert "joinEndpoint" not in await opened.status()


async def test_what_another_manager_owns_costs_no_request_each_time(opened: Door) -> None:
    await opened.provide(told("Ready", "True", "Provided"))
    reports = {"Ready": "False EndpointPending", "Reachable": "False Refused"}
    await opened.write("https://1.example", **reports)
    obj = await opened.client.get(CONTROL_PLANE_ENDPOINTS, "door")
    current = ControlPlaneEndpoint.model_validate(obj)
    ready = Condition.model_validate(told("Ready", "False", "EndpointPending"))
    conditions = [ready if each.type == "Ready" else each for each in current.status.conditions]
    status = current.status.model_copy(update={"conditions": conditions})
    closed = Client(opened.client.config, field_manager="kplane")
    await closed.aclose()
    opened.writer._client = closed
    await opened.writer.write(opened.store, current, status=status)


@pytest.mark.parametrize("part", ["status", "reason", "message", "all"])
async def test_a_condition_that_another_manager_updates_is_left_to_it(opened: Door, part: str) -> None:
    """By an update a manager owns only what it changes: the rest stays the operator's, and must stay there."""
    first = await opened.write("https://1.example", Ready="True Reconciled", Reachable="True Answered")
    parts = {"status": "Unknown", "reason": "Provided", "message": "by the provider"}
    edited = first["Ready"] | (parts if part == "all" else {part: parts[part]})
    await opened.edit(first["Reachable"], edited)
    for url, reason in (("https://2.example", "Refused"), ("https://3.example", "Answered")):
        found = await opened.write(url, Ready="False EndpointInvalid", Reachable=f"False {reason}")
        assert (found["Ready"], found["Reachable"]["reason"]) == (edited, reason)
        assert "owns condition Ready" in found["Contested"]["message"]
        assert (await opened.status())["endpoint"] == url
    await opened.edit(found["Reachable"], found["Contested"])
    found = await opened.write("https://4.example", Ready="True Reconciled", Reachable="True Answered")
    assert {kind: each["reason"] for kind, each in found.items()} == {"Ready": "Reconciled", "Reachable": "Answered"}


async def test_a_time_that_somebody_edits_makes_no_condition_foreign(opened: Door) -> None:
    first = await opened.write("https://1.example", Ready="True Reconciled", Reachable="True Answered")
    await opened.edit(first["Reachable"], first["Ready"] | {"lastTransitionTime": "2020-01-01T00:00:00Z"})
    found = await opened.write("https://2.example", Ready="False EndpointInvalid", Reachable="True Answered")
    assert found["Ready"]["reason"] == "EndpointInvalid"
    assert "Contested" not in found
