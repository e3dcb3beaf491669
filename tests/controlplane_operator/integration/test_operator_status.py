"""Writes of a status reach the right object, despite concurrent changes of the object."""

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
    """Status writer with its store and a client of the API server."""

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
async def test_status_is_not_written_to_a_recreated_object(desk: Desk, seen: str, *, only_as_seen: bool) -> None:
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


async def test_concurrent_change_conflicts_only_with_only_as_seen(desk: Desk) -> None:
    current = await desk.create()
    desk.store.apply(await desk.client.get(CONTROL_PLANES, "subject"))
    await desk.client.patch(CONTROL_PLANES, "subject", {"metadata": {"labels": {"team": "blue"}}})
    with pytest.raises(Conflict):
        await desk.write(current, version="v1.36.3", only_as_seen=True)
    await desk.write(current, version="v1.36.3")
    assert (await desk.status())["version"] == "v1.36.3"


async def test_write_to_a_deleted_object_is_ignored(desk: Desk) -> None:
    current = await desk.create()
    await desk.client.delete(CONTROL_PLANES, "subject")
    await desk.write(current, version="v1.36.3")
    assert desk.store.get(("", "subject")) is None
    await desk.create()


async def test_condition_of_a_foreign_type_stays_owned_by_its_writer(desk: Desk) -> None:
    current = await desk.create()

    async def certify(*conditions: dict[str, Any]) -> None:
        body = {"metadata": {"name": "subject"}, "status": {"conditions": [*conditions]}}
        await desk.client.apply(CONTROL_PLANES, body, subresource="status", field_manager="auditor", force=False)

    await certify(told("example.com/Certified", "True", "Audited"))
    current = ControlPlane.model_validate(await desk.client.get(CONTROL_PLANES, "subject"))
    await desk.write(current, version="v1.36.3")
    # With a second owner, the API server would refuse the change, and keep the removed condition.
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
    """Endpoint whose status has two writers: the operator and a provider of endpoints."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.store = Store(CONTROL_PLANE_ENDPOINTS)
        self.events = Events(client)
        self.writer = StatusWriter(client, events=self.events)

    async def write(self, url: str, **conditions: str) -> dict[str, dict[str, Any]]:
        """Write these conditions as the operator, and return all conditions by type."""
        obj = await self.client.get(CONTROL_PLANE_ENDPOINTS, "door")
        self.store.apply(obj)
        current = ControlPlaneEndpoint.model_validate(obj)
        new_conditions = [
            Condition.model_validate({**told(kind, *value.split()), "lastTransitionTime": dt.datetime.now(dt.UTC)})
            for kind, value in conditions.items()
        ]
        other_conditions = [condition for condition in current.status.conditions if condition.type not in conditions]
        status = current.status.model_copy(update={"endpoint": url, "conditions": [*other_conditions, *new_conditions]})
        await self.writer.write(self.store, current, status=status)
        return await self.conditions()

    async def provide(self, *conditions: dict[str, Any], **status: str) -> None:
        """Apply exactly this status as the provider. Raises Conflict if another manager owns a field."""
        body = {"metadata": {"name": "door"}, "status": {"conditions": [*conditions], **status}}
        await self.client.apply(
            CONTROL_PLANE_ENDPOINTS, body, subresource="status", field_manager="acme-doors", force=False
        )

    async def edit(self, *conditions: dict[str, Any]) -> None:
        """Replace all conditions by an update as the provider, as controllers without server-side apply do."""
        status = {"status": {"conditions": [*conditions]}}
        await self.client.patch(CONTROL_PLANE_ENDPOINTS, "door", status, subresource="status")

    async def status(self) -> dict[str, Any]:
        return dict((await self.client.get(CONTROL_PLANE_ENDPOINTS, "door")).get("status", {}))

    async def conditions(self) -> dict[str, dict[str, Any]]:
        return {item["type"]: item for item in (await self.status()).get("conditions", ())}


@pytest.fixture
async def opened(api_server: Handle) -> AsyncIterator[Door]:
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client:
        spec = {"endpoint": "https://door.example"}
        await client.create(CONTROL_PLANE_ENDPOINTS, {"metadata": {"name": "door"}, "spec": spec})
        yield Door(client)
        await client.delete(CONTROL_PLANE_ENDPOINTS, "door")


async def test_condition_applied_by_another_manager_is_left_and_contested(opened: Door) -> None:
    provided = told("Ready", "True", "Provided")
    await opened.provide(provided)
    conditions = await opened.write("https://1.example", Ready="False EndpointPending", Reachable="False Refused")
    assert conditions["Ready"] == provided
    assert conditions["Reachable"]["reason"] == "Refused"
    assert (conditions["Contested"]["status"], conditions["Contested"]["reason"]) == ("True", "OwnedByAnotherManager")
    assert conditions["Contested"]["message"] == (
        "field manager 'acme-doors' owns condition Ready; the operator found False"
        " (EndpointPending: so it is: EndpointPending)"
    )
    # The operator maintains its own conditions, also after a restart.
    for url, reason in (("https://2.example", "Answered"), ("https://3.example", "Refused")):
        conditions = await opened.write(url, Ready="True Reconciled", Reachable=f"True {reason}")
        assert (conditions["Ready"], conditions["Reachable"]["reason"]) == (provided, reason)
        assert (await opened.status())["endpoint"] == url
        opened.writer = StatusWriter(opened.client, events=opened.events)
    # The other manager can change and remove its own condition without force.
    changed = told("Ready", "False", "Leaking")
    await opened.provide(changed, joinEndpoint="https://join.example")
    conditions = await opened.write("https://4.example", Ready="True Reconciled", Reachable="True Answered")
    assert (conditions["Ready"], conditions["Reachable"]["reason"]) == (changed, "Answered")
    await opened.provide()
    assert "Ready" not in await opened.conditions()
    conditions = await opened.write("https://5.example", Ready="True Reconciled", Reachable="True Answered")
    assert {kind: item["reason"] for kind, item in conditions.items()} == {
        "Ready": "Reconciled",
        "Reachable": "Answered",
    }
    assert "joinEndpoint" not in await opened.status()


async def test_unchanged_contested_condition_sends_no_request(opened: Door) -> None:
    await opened.provide(told("Ready", "True", "Provided"))
    reports = {"Ready": "False EndpointPending", "Reachable": "False Refused"}
    await opened.write("https://1.example", **reports)
    obj = await opened.client.get(CONTROL_PLANE_ENDPOINTS, "door")
    current = ControlPlaneEndpoint.model_validate(obj)
    ready = Condition.model_validate(told("Ready", "False", "EndpointPending"))
    conditions = [ready if item.type == "Ready" else item for item in current.status.conditions]
    status = current.status.model_copy(update={"conditions": conditions})
    closed = Client(opened.client.config, field_manager="kplane")
    await closed.aclose()
    opened.writer._client = closed
    await opened.writer.write(opened.store, current, status=status)


@pytest.mark.parametrize("part", ["status", "reason", "message", "all"])
async def test_condition_updated_by_another_manager_is_left_to_it(opened: Door, part: str) -> None:
    """An update gives a manager only its changed fields. The operator still owns and keeps the other fields."""
    first = await opened.write("https://1.example", Ready="True Reconciled", Reachable="True Answered")
    parts = {"status": "Unknown", "reason": "Provided", "message": "by the provider"}
    edited = first["Ready"] | (parts if part == "all" else {part: parts[part]})
    await opened.edit(first["Reachable"], edited)
    for url, reason in (("https://2.example", "Refused"), ("https://3.example", "Answered")):
        conditions = await opened.write(url, Ready="False EndpointInvalid", Reachable=f"False {reason}")
        assert (conditions["Ready"], conditions["Reachable"]["reason"]) == (edited, reason)
        assert "owns condition Ready" in conditions["Contested"]["message"]
        assert (await opened.status())["endpoint"] == url
    await opened.edit(conditions["Reachable"], conditions["Contested"])
    conditions = await opened.write("https://4.example", Ready="True Reconciled", Reachable="True Answered")
    assert {kind: item["reason"] for kind, item in conditions.items()} == {
        "Ready": "Reconciled",
        "Reachable": "Answered",
    }


async def test_edited_transition_time_does_not_contest_a_condition(opened: Door) -> None:
    first = await opened.write("https://1.example", Ready="True Reconciled", Reachable="True Answered")
    await opened.edit(first["Reachable"], first["Ready"] | {"lastTransitionTime": "2020-01-01T00:00:00Z"})
    conditions = await opened.write("https://2.example", Ready="False EndpointInvalid", Reachable="True Answered")
    assert conditions["Ready"]["reason"] == "EndpointInvalid"
    assert "Contested" not in conditions
