"""Events on a real management cluster: one for each thing that happened."""

from __future__ import annotations

from typing import Any

import pytest

from provider import EVENTS

pytestmark = pytest.mark.integration


async def test_what_changes_two_conditions_is_told_once(field: Any) -> None:
    async def told(name: str) -> list[tuple[str, int]]:
        return [
            (event["reason"], event["count"])
            for event in (await field.client.list(EVENTS)).items
            if event["involvedObject"]["name"] == name
        ]

    # Nobody listens: neither Ready nor Reachable.
    await field.create("ControlPlaneEndpoint", "closed-door", endpoint="https://127.0.0.1:1")
    await field.becomes("ControlPlaneEndpoint", "closed-door", "EndpointUnreachable")
    # Events are posted one after the other, so that this one is the last.
    await field.create("ControlPlaneRegistration", "afterwards", controlPlaneRef={"name": "nobody"})
    await field.eventually(lambda: told("afterwards"), lambda found: ("ControlPlaneNotFound", 1) in found)
    assert await told("closed-door") == [("EndpointUnreachable", 1)]
