"""Who serves one mode and who serves the other take turns at a registration, on a real API server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
from typing_extensions import override

from kplane.api import RegistrationMode
from kplane.mcm.errors import NotAnnounced, RegistrationWithdrawn
from kplane.mcm.reasons import Reason
from kplane.mcm.status.reporter import StatusReporter
from kplane.provider import Client, Cluster, ClusterConfig, Conflict, Resource
from kplane.provider.errors import Forbidden
from kplane.provider.providers.kplane import REGISTRATIONS

pytestmark = pytest.mark.integration

Eventually = Callable[..., Any]
UID = "uid-1"
INSTANCE = {"controlPlaneUID": UID, "services": ["Controllers"]}
SHARED, DEDICATED = RegistrationMode.SHARED, RegistrationMode.DEDICATED


class Meddled(Client):
    """A client before whose next write somebody else writes, or whose writes are refused."""

    meddle: Callable[[], Any] | None = None
    fault: Exception | None = None

    @override
    async def apply(self, resource: Resource, body: dict[str, Any], **options: Any) -> Any:
        meddle, self.meddle = self.meddle, None
        if meddle is not None:
            await meddle()
        if self.fault is not None:
            raise self.fault
        return await super().apply(resource, body, **options)


class Table:
    """One registration, and those of both modes who tell it of their instances."""

    def __init__(self, admin: Client, client: Meddled) -> None:
        self.admin = admin
        self.client = client
        self.name = f"mode-{uuid.uuid4().hex[:10]}"
        self.view: Mapping[str, Any] | None = None
        """The registration as the watch told of it last."""

    @property
    def cluster(self) -> Cluster:
        config = ClusterConfig(server="https://127.0.0.1:1", token="t")
        return Cluster(self.name, config=config, attributes={"controlPlaneUID": UID})

    def reports(self, mode: RegistrationMode, **options: Any) -> StatusReporter:
        return StatusReporter(self.client, registration=lambda _: self.view, mode=mode, **options)

    async def resolve(self, **status: Any) -> None:
        """Write what the operator would."""
        body = {"status": {"ready": True, "controlPlaneUID": UID, **status}}
        await self.admin.patch(REGISTRATIONS, self.name, body, subresource="status")

    async def look(self) -> dict[str, Any]:
        """Have the watch tell how it is now; what its status says."""
        self.view = await self.admin.get(REGISTRATIONS, self.name)
        status: dict[str, Any] = self.view["status"]
        return status


@pytest.fixture
async def table(api_server: Any) -> AsyncIterator[Table]:
    async with (
        Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as admin,
        Meddled(ClusterConfig.load(api_server.mcm_kubeconfig), field_manager="kplane") as client,
    ):
        made = Table(admin, client)
        spec = {"controlPlaneRef": {"name": made.name}, "services": ["Controllers"]}
        await admin.create(REGISTRATIONS, {"metadata": {"name": made.name}, "spec": spec})
        await made.resolve(mode="Shared")
        await made.look()
        try:
            yield made
        finally:
            await admin.delete(REGISTRATIONS, made.name)


async def test_an_apply_to_a_status_is_refused_where_it_names_a_version_that_is_over(table: Table) -> None:
    """What the turns rely on: an apply asks the API server to compare, though it may be forced."""
    before = await table.admin.get(REGISTRATIONS, table.name)
    await table.resolve(mode="Dedicated")
    version = before["metadata"]["resourceVersion"]
    body = {
        "metadata": {"name": table.name, "resourceVersion": version},
        "status": {"instance": {"controlPlaneUID": UID}},
    }
    with pytest.raises(Conflict):
        await table.client.apply(REGISTRATIONS, body, subresource="status", field_manager="mcm", force=True)
    assert "instance" not in await table.look()
    assert table.view is not None
    body["metadata"]["resourceVersion"] = table.view["metadata"]["resourceVersion"]
    await table.client.apply(REGISTRATIONS, body, subresource="status", field_manager="mcm", force=True)
    assert (await table.look())["instance"] == {"controlPlaneUID": UID}


async def test_each_takes_its_turn_when_the_other_has_ended(table: Table) -> None:
    shared, dedicated = table.reports(SHARED), table.reports(DEDICATED)
    await shared.announce(table.cluster)
    assert (await table.look())["instance"] == INSTANCE
    await table.resolve(mode="Dedicated")
    await table.look()
    with pytest.raises(RegistrationWithdrawn, match="instance of the other mode"):
        await dedicated.announce(table.cluster)
    await dedicated.end(table.name)
    assert (await table.look())["instance"] == INSTANCE
    with pytest.raises(RegistrationWithdrawn, match="wants no instance"):
        await shared.announce(table.cluster)
    await shared.end(table.name)
    assert "instance" not in await table.look()

    await dedicated.announce(table.cluster)
    assert (await table.look())["instance"] == INSTANCE | {"mode": "Dedicated"}
    await table.resolve(mode="Shared")
    await table.look()
    with pytest.raises(RegistrationWithdrawn, match="instance of the other mode"):
        await shared.announce(table.cluster)
    await shared.end(table.name)
    assert (await table.look())["instance"]["mode"] == "Dedicated"
    await dedicated.end(table.name)
    await table.look()
    await shared.announce(table.cluster)
    assert (await table.look())["instance"] == INSTANCE


@pytest.mark.parametrize("first", [SHARED, DEDICATED])
async def test_of_two_who_announce_at_once_the_second_one_sees_the_first(table: Table, first: RegistrationMode) -> None:
    """Neither watch has told of anything yet, and both believe that it is their turn."""
    second = DEDICATED if first is SHARED else SHARED
    stale = {
        mode: {**(table.view or {}), "status": {**(table.view or {})["status"], "mode": mode}}
        for mode in (first, second)
    }
    theirs = StatusReporter(table.client, registration=lambda _: stale[first], mode=first)
    ours = StatusReporter(table.client, registration=lambda _: stale[second], mode=second)
    await table.resolve(mode=second)

    async def meddle() -> None:
        # That one believes that the mode is its own: it loses its instance, but not before it has said so.
        await table.resolve(mode=first)
        await theirs.announce(table.cluster)

    table.client.meddle = meddle
    with pytest.raises(RegistrationWithdrawn):
        await ours.announce(table.cluster)
    await ours.end(table.name)
    instance = (await table.look())["instance"]
    assert instance.get("mode", SHARED) == first


async def test_what_the_operator_writes_meanwhile_is_no_obstacle(table: Table) -> None:
    table.client.meddle = lambda: table.resolve(mode="Shared", version="v1.36.1")
    reports = table.reports(SHARED)
    await reports.announce(table.cluster)
    assert (await table.look())["instance"] == INSTANCE
    table.client.meddle = lambda: table.resolve(mode="Shared", version="v1.36.2")
    await reports.end(table.name)
    assert "instance" not in await table.look()


async def test_one_that_has_to_announce_does_not_start_where_it_cannot(table: Table, eventually: Eventually) -> None:
    await table.resolve(mode="Dedicated")
    await table.look()
    table.client.fault = Forbidden(403, "Forbidden", "somebody's policy says no")
    reports = table.reports(DEDICATED, has_to_announce=True)
    with pytest.raises(NotAnnounced, match="somebody's policy says no"):
        await reports.announce(table.cluster)
    await reports.end(table.name)
    table.client.fault = None
    await reports.announce(table.cluster)
    assert (await table.look())["instance"]["mode"] == "Dedicated"


async def test_leftovers_are_told_of_by_who_serves_their_mode(table: Table, eventually: Eventually) -> None:
    """By the next run of it: also where the registration has another mode by then."""
    await table.resolve(mode="Dedicated")
    await table.look()
    await table.reports(DEDICATED).announce(table.cluster)
    await table.resolve(mode="Shared")
    await table.look()
    for mode, instance in ((SHARED, INSTANCE | {"mode": "Dedicated"}), (DEDICATED, None)):
        reports = table.reports(mode)
        async with reports.running():
            reports.look(table.name)
            await reports.end(table.name)
        assert (await table.look()).get("instance") == instance


async def test_what_an_earlier_run_said_is_said_anew_before_the_next_instance(table: Table) -> None:
    """Its announcement may be taken back by whoever ended it, and the watch not have told of that yet."""
    await table.reports(SHARED).announce(table.cluster)
    await table.look()
    ended = table.reports(SHARED)
    await ended.end(table.name)
    await table.reports(SHARED).announce(table.cluster)
    assert (await table.look())["instance"] == INSTANCE


async def test_nothing_is_said_over_the_instance_of_the_other(table: Table) -> None:
    await table.resolve(mode="Dedicated")
    await table.look()
    await table.reports(DEDICATED).announce(table.cluster)
    before = await table.look()
    shared = table.reports(SHARED)
    async with shared.running():
        shared.update(table.name, Reason.INSTANCE_RUNNING)
        shared.report_failure(table.cluster, "no program")
        await shared.end(table.name)
        await asyncio.sleep(0)
    assert await table.look() == before
