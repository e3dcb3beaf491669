"""Which Events a change of status is worth."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any, cast

import pytest

from api import Condition, ControlPlaneEndpoint
from controlplane_operator.cache import Store
from controlplane_operator.events import Events
from controlplane_operator.kinds import CONTROL_PLANE_ENDPOINTS
from controlplane_operator.status import StatusWriter
from provider import Client


class Posted:
    """Takes what is sent to an API server, and says thank you."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    async def apply(self, _: Any, body: dict[str, Any], **__: Any) -> dict[str, Any]:
        return {**body, "metadata": {**body["metadata"], "resourceVersion": "2"}, "spec": {}}

    async def create(self, _: Any, body: dict[str, Any]) -> dict[str, Any]:
        self.events.append((body["reason"], body["message"]))
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
async def test_what_changes_two_conditions_for_one_reason_is_told_once(
    conditions: list[tuple[str, str, str]], told: list[str], eventually: Any
) -> None:
    posted = Posted()
    events = Events(cast("Client", posted))
    current = ControlPlaneEndpoint.model_validate(
        {"metadata": {"name": "door", "uid": "1", "resourceVersion": "1"}, "spec": {}}
    )
    status = current.status.model_copy(update={"conditions": [condition(*each) for each in conditions]})
    writer = StatusWriter(cast("Client", posted), events=events)
    await writer.write(Store(CONTROL_PLANE_ENDPOINTS), current, status=status)
    events.record(current, reason="Last", message="of all")
    posting = asyncio.create_task(events.run())
    await eventually(lambda: posted.events, lambda seen: ("Last", "of all") in seen)
    posting.cancel()
    assert [reason for reason, _ in posted.events] == [*told, "Last"]
