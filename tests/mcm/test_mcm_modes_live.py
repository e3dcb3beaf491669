"""Shared and dedicated mcm take turns at a registration, on a real API server."""

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
    """A client that calls `meddle` before its next write, and whose writes fail with `fault`."""

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
    """A registration, and reporters of both modes."""

    def __init__(self, admin: Client, client: Meddled) -> None:
        self.admin = admin
        self.client = client
        self.name = f"mode-{uuid.uuid4().hex[:10]}"
        self.view: Mapping[str, Any] | None = None
        """The registration as last seen by the watch."""

    @property
    def cluster(self) -> Cluster:
        config = ClusterConfig(server="https://127.0.0.1:1", token="t")
        return Cluster(self.name, config=config, attributes={"controlPlaneUID": UID})

    def reports(self, mode: RegistrationMode, **options: Any) -> StatusReporter:
        return StatusReporter(self.client, registration=lambda _: self.view, mode=mode, **options)

    async def resolve(self, **status: Any) -> None:
        """Write the status as the operator does."""
        body = {"status": {"ready": True, "controlPlaneUID": UID, **status}}
        await self.admin.patch(REGISTRATIONS, self.name, body, subresource="status")

    async def look(self) -> dict[str, Any]:
        """Update the view of the watch. Returns the status of the registration."""
        self.view = await self.admin.get(REGISTRATIONS, self.name)
        status: dict[str, Any] = self.view["status"]
        return status


@pytest.fixture
async def table(api_server: Any) -> AsyncIterator[Table]:
    async with (
        Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as admin,
        Meddled(ClusterConfig.load(api_server.mcm_kubeconfig), field_manager="kplane") as client,
    ):
        table = Table(admin, client)
        spec = {"controlPlaneRef": {"name": table.name}, "services": ["Controllers"]}
        await admin.create(REGISTRATIONS, {"metadata": {"name": table.name}, "spec": spec})
        await table.resolve(mode="Shared")
        await table.look()
        try:
            yield table
        finally:
            await admin.delete(REGISTRATIONS, table.name)


async def test_status_apply_with_an_old_resource_version_is_refused(table: Table) -> None:
    """The turns rely on this: the API server compares resource versions even in a forced apply."""
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


async def test_each_mode_announces_only_after_the_end_of_the_other(table: Table) -> None:
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
async def test_second_of_two_concurrent_announcements_is_refused(table: Table, first: RegistrationMode) -> None:
    """Both watches are behind, so both reporters expect their turn."""
    second = DEDICATED if first is SHARED else SHARED
    stale = {
        mode: {**(table.view or {}), "status": {**(table.view or {})["status"], "mode": mode}}
        for mode in (first, second)
    }
    theirs = StatusReporter(table.client, registration=lambda _: stale[first], mode=first)
    ours = StatusReporter(table.client, registration=lambda _: stale[second], mode=second)
    await table.resolve(mode=second)

    async def meddle() -> None:
        # The first reporter still sees its own mode, and keeps its instance until it has reported the end.
        await table.resolve(mode=first)
        await theirs.announce(table.cluster)

    table.client.meddle = meddle
    with pytest.raises(RegistrationWithdrawn):
        await ours.announce(table.cluster)
    await ours.end(table.name)
    instance = (await table.look())["instance"]
    assert instance.get("mode", SHARED) == first


async def test_concurrent_write_of_the_operator_does_not_fail_a_report(table: Table) -> None:
    table.client.meddle = lambda: table.resolve(mode="Shared", version="v1.36.1")
    reports = table.reports(SHARED)
    await reports.announce(table.cluster)
    assert (await table.look())["instance"] == INSTANCE
    table.client.meddle = lambda: table.resolve(mode="Shared", version="v1.36.2")
    await reports.end(table.name)
    assert "instance" not in await table.look()


async def test_required_announcement_raises_when_it_is_refused(table: Table, eventually: Eventually) -> None:
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


async def test_end_of_a_leftover_is_reported_by_the_mcm_of_its_mode(table: Table, eventually: Eventually) -> None:
    """The next run of that mcm reports it, even if the registration has another mode by then."""
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


async def test_announcement_is_written_again_for_the_next_instance(table: Table) -> None:
    """The run that ended the instance may have removed the announcement, and the watch may be behind."""
    await table.reports(SHARED).announce(table.cluster)
    await table.look()
    ending_run = table.reports(SHARED)
    await ending_run.end(table.name)
    await table.reports(SHARED).announce(table.cluster)
    assert (await table.look())["instance"] == INSTANCE


async def test_report_for_the_instance_of_the_other_mode_is_kept(table: Table) -> None:
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
