"""Events that a change of status posts."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any, cast

import pytest

from kplane.api import Condition, ControlPlane, ControlPlaneEndpoint, ControlPlaneStatus
from kplane.controlplane_operator.kinds import CONTROL_PLANE_ENDPOINTS, CONTROL_PLANES
from kplane.controlplane_operator.status.events import Events
from kplane.controlplane_operator.status.writer import StatusWriter
from kplane.controlplane_operator.watch.cache import Store
from kplane.provider import Client


class Posted:
    """Fake API server: accepts statuses, and records Events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.types: list[str] = []

    async def apply(self, _: Any, body: dict[str, Any], **__: Any) -> dict[str, Any]:
        return {**body, "metadata": {**body["metadata"], "resourceVersion": "2"}, "spec": {}}

    async def create(self, _: Any, body: dict[str, Any]) -> dict[str, Any]:
        self.events.append((body["reason"], body["message"]))
        self.types.append(body["type"])
        return body


def condition(kind: str, status: Any, reason: str) -> Condition:
    now = dt.datetime.now(dt.UTC)
    return Condition(type=kind, status=status, reason=reason, message=f"so it is: {reason}", last_transition_time=now)


@pytest.mark.parametrize(
    ("conditions", "told"),
    [
        ([("Ready", "False", "EndpointPending"), ("Reachable", "Unknown", "EndpointPending")], ["EndpointPending"]),
        ([("Ready", "True", "Reconciled"), ("Reachable", "True", "Answered")], ["Reconciled", "Answered"]),
    ],
)
async def test_two_conditions_with_same_reason_post_one_event(
    conditions: list[tuple[str, str, str]], told: list[str], eventually: Any
) -> None:
    before = [condition(kind, "Unknown", "Probing") for kind in ("Ready", "Reachable")]
    posted = Posted()
    events = Events(cast("Client", posted))
    current = ControlPlaneEndpoint.model_validate(
        {"metadata": {"name": "door", "uid": "1", "resourceVersion": "1"}, "spec": {}}
    )
    status = current.status.model_copy(update={"conditions": [condition(*fields) for fields in conditions]})
    current = current.model_copy(update={"status": current.status.model_copy(update={"conditions": before})})
    writer = StatusWriter(cast("Client", posted), events=events)
    await writer.write(Store(CONTROL_PLANE_ENDPOINTS), current, status=status)
    events.record(current, reason="Last", message="of all")
    posting = asyncio.create_task(events.run())
    await eventually(lambda: posted.events, lambda seen: ("Last", "of all") in seen)
    posting.cancel()
    assert [reason for reason, _ in posted.events] == [*told, "Last"]


def status(version: str | None = None, **conditions: str) -> ControlPlaneStatus:
    condition_list = [condition(kind, value, "So") for kind, value in conditions.items()]
    return ControlPlaneStatus(version=version, conditions=condition_list)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (status(Ready="True", ClassFound="False"), status(Ready="True"), ["ClassFound"]),
        (status(Supported="False", Paused="True"), status(), ["Supported", "Resumed"]),
        (status("v1.35.0", UpToDate="False"), status("v1.35.0"), ["UpToDate"]),
        # Event VersionChanged already reports the new version.
        (status("v1.35.0", UpToDate="False"), status("v1.36.0"), []),
        (status(Synced="False"), status(), ["Synced"]),
    ],
)
async def test_end_of_abnormal_condition_posts_one_event(
    before: ControlPlaneStatus, after: ControlPlaneStatus, told: list[str], eventually: Any
) -> None:
    posted = Posted()
    events = Events(cast("Client", posted))
    current = ControlPlane.model_validate(
        {"metadata": {"name": "acme", "uid": "1", "resourceVersion": "1"}, "spec": {}}
    ).model_copy(update={"status": before})
    await StatusWriter(cast("Client", posted), events=events).write(Store(CONTROL_PLANES), current, status=after)
    events.record(current, reason="Last", message="of all")
    posting = asyncio.create_task(events.run())
    await eventually(lambda: posted.events, lambda seen: ("Last", "of all") in seen)
    posting.cancel()
    assert [reason for reason, _ in posted.events] == [*told, "Last"]


async def test_published_control_plane_without_its_role_gets_a_warning(eventually: Any) -> None:
    posted = Posted()
    events = Events(cast("Client", posted))
    before = ControlPlaneStatus(endpoint="https://x", conditions=[condition("Ready", "True", "Reconciled")])
    current = ControlPlane.model_validate(
        {"metadata": {"name": "acme", "uid": "1", "resourceVersion": "1"}, "spec": {}}
    ).model_copy(update={"status": before})
    after = before.model_copy(update={"conditions": [condition("Ready", "False", "RoleNotFound")]})
    await StatusWriter(cast("Client", posted), events=events).write(Store(CONTROL_PLANES), current, status=after)
    posting = asyncio.create_task(events.run())
    await eventually(lambda: posted.events)
    posting.cancel()
    assert posted.events == [("RoleNotFound", "so it is: RoleNotFound")]
    assert posted.types == ["Warning"]


@pytest.mark.parametrize(
    ("conditions", "told"),
    [
        ([("Managed", "False", "EndpointReferenced"), ("Ready", "False", "Provisioning")], []),
        ([("Ready", "True", "Reconciled"), ("Reachable", "True", "Answered")], []),
        ([("Ready", "True", "Hibernated"), ("Hibernated", "True", "Hibernated")], []),
        ([("Ready", "False", "ClassNotFound")], ["ClassNotFound"]),
        ([("Ready", "False", "EtcdUnavailable")], ["EtcdUnavailable"]),
        ([("Paused", "True", "PausedByAnnotation")], ["PausedByAnnotation"]),
    ],
)
async def test_first_status_posts_events_only_for_abnormal_conditions(
    conditions: list[tuple[str, str, str]], told: list[str], eventually: Any
) -> None:
    posted = Posted()
    events = Events(cast("Client", posted))
    current = ControlPlane.model_validate(
        {"metadata": {"name": "acme", "uid": "1", "resourceVersion": "1"}, "spec": {}}
    )
    status = ControlPlaneStatus(conditions=[condition(*fields) for fields in conditions])
    await StatusWriter(cast("Client", posted), events=events).write(Store(CONTROL_PLANES), current, status=status)
    events.record(current, reason="Last", message="of all")
    posting = asyncio.create_task(events.run())
    await eventually(lambda: posted.events, lambda seen: ("Last", "of all") in seen)
    posting.cancel()
    assert [reason for reason, _ in posted.events] == [*told, "Last"]
