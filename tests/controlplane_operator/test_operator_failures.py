"""Failures of reconciles: counted at once, reported when they last, and beside a valid published status."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from kplane.api import ControlPlane, ControlPlaneRegistration, ControlPlaneStatus
from kplane.controlplane_operator import failures
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.failures import Failures
from kplane.controlplane_operator.grants import Access
from kplane.controlplane_operator.registrations.consumers import registrations_of
from kplane.controlplane_operator.secret_access import SecretAccess
from kplane.controlplane_operator.status.events import Events
from kplane.controlplane_operator.status.partial import PartialControlPlane, PartialRegistration
from kplane.controlplane_operator.status.writer import StatusWriter
from kplane.controlplane_operator.watch.stores import Stores
from kplane.controlplane_operator.watch.triggers import Triggers
from kplane.provider import Client, Conflict, Resource, Result, Unreachable
from kplane.provider.errors import Forbidden, ServerError

KEY = "", "acme"
REFUSED = Forbidden(403, "Forbidden", "secrets are refused by policy x")


class Server:
    """Fake API server: records written statuses, or is unreachable. The stores get its answers."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self.written: list[dict[str, Any]] = []
        self.away = False

    async def apply(self, resource: Resource, body: dict[str, Any], **__: Any) -> dict[str, Any]:
        if self.away:
            raise Unreachable("nobody there", kind="connect")
        self.written.append(body["status"])
        version = str(len(self.written) + 1)
        metadata = {**body["metadata"], "uid": "1", "generation": 3, "resourceVersion": version}
        stored = {"metadata": metadata, "spec": {}, "status": body["status"]}
        next(store for store in self.stores.cached() if store.resource == resource).apply(stored)
        return stored


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake_clock = Clock()
    monkeypatch.setattr(failures, "time", fake_clock)
    return fake_clock


@pytest.fixture
def server() -> Server:
    return Server(Stores())


@pytest.fixture
def context(server: Server) -> OperatorContext:
    client = cast("Client", server)
    events = Events(client)
    return OperatorContext(
        client=client,
        stores=server.stores,
        triggers=Triggers(),
        status=StatusWriter(client, events=events),
        events=events,
        access=cast("Access", None),
        secrets=cast("SecretAccess", None),
    )


@pytest.fixture
def told(context: OperatorContext) -> Failures:
    return Failures(
        context, controller="controlplane", store=context.stores.control_planes, written=PartialControlPlane
    )


def known(context: OperatorContext, **status: Any) -> None:
    metadata = {"name": "acme", "uid": "1", "resourceVersion": "1", "generation": 3}
    written = ControlPlaneStatus(**status).model_dump(mode="json", by_alias=True, exclude_none=True)
    context.stores.control_planes.apply({"metadata": metadata, "spec": {}, "status": written})


def conditions(server: Server) -> dict[str, tuple[str, str]]:
    return {
        condition["type"]: (condition["status"], condition["reason"]) for condition in server.written[-1]["conditions"]
    }


def samples(registry: CollectorRegistry, name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == name
    }


async def test_short_failure_is_not_written_to_status(
    context: OperatorContext, server: Server, told: Failures, clock: Clock
) -> None:
    known(context)

    async def reconcile(_: Any) -> Result | None:
        return None

    await told.failed(KEY, REFUSED)
    clock.now += 2.0
    await told.failed(KEY, REFUSED)
    await told.guarded(reconcile)(KEY)
    clock.now += 2.0
    await told.failed(KEY, REFUSED)
    # A conflict or an unreachable API server is never reported, however long the failure lasts.
    for error in (Conflict(409, "Conflict", "changed"), Unreachable("cut", kind="connect")):
        clock.now += 60.0
        await told.failed(KEY, error)
    assert server.written == []


@pytest.mark.parametrize("error", [REFUSED, ServerError(500, "InternalError", "the webhook x is away")])
async def test_lasting_failure_is_written_once_with_its_message(
    context: OperatorContext, server: Server, told: Failures, clock: Clock, error: Exception
) -> None:
    known(context)
    for _ in range(5):
        await told.failed(KEY, error)
        clock.now += 1.5
    assert conditions(server) == {"Ready": ("False", "ManagementClusterRefused")}
    assert str(error) in server.written[-1]["conditions"][0]["message"]
    assert len(server.written) == 1
    failures = samples(context.metrics.registry, "kplane_reconcile_failures_total")
    assert failures == {("controlplane", "ManagementClusterRefused"): 3}


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (timedelta(hours=1), {"Synced": ("False", "TimedOut")}),
        (timedelta(hours=-1), {"Ready": ("False", "TimedOut")}),
    ],
)
async def test_published_object_stays_ready_while_credentials_are_valid(
    context: OperatorContext, server: Server, told: Failures, ends: timedelta, expected: dict[str, tuple[str, str]]
) -> None:
    known(context, endpoint="https://acme", credentials_expire_at=datetime.now(UTC) + ends)
    await told.failed(KEY, TimeoutError("it took longer than 90 s"))
    assert conditions(server) == expected
    assert server.written[-1]["endpoint"] == "https://acme"
    await told.over(KEY)
    assert "Synced" not in {condition["type"] for condition in server.written[-1].get("conditions", ())}


async def test_internal_error_reports_exception_type_without_its_text(
    context: OperatorContext, server: Server, told: Failures, clock: Clock
) -> None:
    known(context)
    for _ in range(2):
        await told.failed(KEY, KeyError("secret words"))
        clock.now += 60.0
    [condition] = server.written[-1]["conditions"]
    assert condition["reason"] == "InternalError"
    assert "KeyError" in condition["message"]
    assert "secret words" not in condition["message"]


async def test_failed_status_write_is_repeated_at_next_failure(
    context: OperatorContext, server: Server, told: Failures
) -> None:
    known(context)
    server.away = True
    await told.failed(KEY, TimeoutError("it took longer than 90 s"))
    server.away = False
    await told.failed(KEY, TimeoutError("it took longer than 90 s"))
    assert conditions(server) == {"Ready": ("False", "TimedOut")}


@pytest.mark.parametrize("lives", [True, False])
async def test_invalid_registration_stays_resolved_while_control_plane_lives(
    context: OperatorContext, server: Server, lives: bool
) -> None:
    registration_failures = Failures(
        context,
        controller="controlplaneregistration",
        store=context.stores.registrations,
        written=PartialRegistration,
    )

    async def reconcile(key: Any) -> Result | None:
        ControlPlaneRegistration.model_validate(context.stores.registrations.get(key))
        return None

    ends = {} if lives else {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    served = {"name": "acme", "uid": "7", "resourceVersion": "1", **ends}
    context.stores.control_planes.apply({"metadata": served, "spec": {}})
    status = {"ready": True, "controlPlaneUID": "7", "resolvedEndpoint": "https://acme"}
    body = {"metadata": {"name": "acme", "uid": "1", "resourceVersion": "1"}, "spec": {"services": 7}, "status": status}
    context.stores.registrations.apply(body)
    control_plane = ControlPlane.model_validate(context.stores.control_planes.get(KEY))
    assert registrations_of(control_plane, stores=context.stores) == ["acme"]
    assert await registration_failures.guarded(reconcile)(KEY) is None
    assert conditions(server) == {"Synced" if lives else "Ready": ("False", "SpecInvalid")}
    assert "spec.services" in server.written[-1]["conditions"][0]["message"]
    written = {name: server.written[-1].get(name) for name in status}
    assert written == (status if lives else {"ready": False, "controlPlaneUID": None, "resolvedEndpoint": None})
    # Otherwise a removal would wait for this registration until the timeout.
    assert registrations_of(control_plane, stores=context.stores) == (["acme"] if lives else [])
