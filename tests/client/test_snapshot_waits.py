"""A wait for a snapshot ends immediately if the snapshot needs an action of a user."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

import kplane.client.control_planes
from kplane.api import ControlPlaneSnapshot
from kplane.api.reasons import Reason
from kplane.client import Change, ClientError, ControlPlanes, NoControlPlane, NotSettled
from kplane.provider import Client, NotFound

CREATED_AT = "2026-11-26T12:00:00Z"


class Cluster:
    """A cluster that creates requested objects and has control planes of the given names."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.created: dict[str, Any] = {}

    async def create(self, _: Any, body: dict[str, Any]) -> dict[str, Any]:
        self.created = body
        return body

    async def get(self, _: Any, name: str) -> dict[str, Any]:
        if name not in self.names:
            raise NotFound(404, "NotFound", name, details={"name": name})
        return {"metadata": {"name": name}, "spec": {}}


def follow_reasons(monkeypatch: pytest.MonkeyPatch, *reasons: str) -> None:
    """Emit a snapshot without a condition, then one change for each reason, and then no more changes."""

    async def follow(client: Cluster, kind: type[ControlPlaneSnapshot], *, name: str) -> AsyncGenerator[Any, None]:
        del name
        yield Change("ADDED", kind.model_validate(client.created))
        for reason in reasons:
            condition = {"type": "Ready", "status": "False", "reason": reason, "message": f"the words of {reason}"}
            status = {"phase": "Pending", "conditions": [condition | {"lastTransitionTime": CREATED_AT}]}
            yield Change("MODIFIED", kind.model_validate(client.created | {"status": status}))
        await asyncio.Event().wait()

    monkeypatch.setattr(kplane.client.control_planes, "follow", follow)


async def save(cluster: Cluster, *, seconds: float) -> None:
    control_planes = ControlPlanes(cast("Client", cluster))
    await control_planes.snapshot("before", of="acme", wait=True, timeout_seconds=seconds)


@pytest.mark.parametrize("reason", [Reason.NO_SNAPSHOT_STORAGE, Reason.NOT_RUN_BY_KPLANE])
async def test_wait_ends_at_once_if_snapshot_needs_user_action(monkeypatch: pytest.MonkeyPatch, reason: Reason) -> None:
    follow_reasons(monkeypatch, Reason.SAVING, reason)
    async with asyncio.timeout(10):
        with pytest.raises(ClientError, match=f"the words of {reason}; .*kplane backup delete before") as failure:
            await save(Cluster("acme"), seconds=600)
    assert not isinstance(failure.value, NotSettled)


async def test_wait_ends_at_once_if_control_plane_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    follow_reasons(monkeypatch, Reason.CONTROL_PLANE_NOT_FOUND)
    async with asyncio.timeout(10):
        with pytest.raises(NoControlPlane, match="acme"):
            await save(Cluster(), seconds=600)


@pytest.mark.parametrize("reason", [Reason.SAVING, Reason.SNAPSHOT_FAILED, Reason.CONTROL_PLANE_NOT_FOUND])
async def test_wait_continues_for_reasons_that_may_pass(monkeypatch: pytest.MonkeyPatch, reason: Reason) -> None:
    follow_reasons(monkeypatch, reason)
    with pytest.raises(NotSettled, match=f"the words of {reason}"):
        await save(Cluster("acme"), seconds=0.2)
