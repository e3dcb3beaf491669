"""Hibernation with restarts of the operator, and with a limit of awake control planes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import aiohttp
import pytest

from kplane.api.names import SLEEP_REQUESTED_ANNOTATION, WAKE_REQUESTED_ANNOTATION
from kplane.controlplane_operator.hibernation import room as rooms
from kplane.controlplane_operator.hibernation import sleeper as sleepers
from kplane.provider import Client
from kplane.provider.client.resources import NAMESPACES

from .sleeping import ON_DEMAND, annotate, announce, answers, condition, now, wake

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for a gateway, which is absent here, before API servers stop."""
    monkeypatch.setattr(sleepers, "_HEARD_SECONDS", 0.1)


async def test_restarted_operator_continues_sleep_and_wake(mortal_field: Any) -> None:
    field, running = mortal_field
    name = "survivor"
    async with running():
        await field.create("ControlPlane", name, **ON_DEMAND)
        await field.create("ControlPlaneRegistration", name, controlPlaneRef={"name": name}, services=["Controllers"])
        await field.becomes("ControlPlane", name, "Hibernated")
    await annotate(field, name, **{WAKE_REQUESTED_ANNOTATION: now()})
    async with running():
        uid = (await field.becomes("ControlPlane", name, "Reconciled"))["metadata"]["uid"]
        config = await field.tenant(name)
        await announce(field, name, {"controlPlaneUID": uid, "services": ["Controllers"]})
        await annotate(field, name, **{SLEEP_REQUESTED_ANNOTATION: now()})
        await field.becomes("ControlPlane", name, "FallingAsleep")
    assert await answers(field, name)
    await announce(field, name, None)
    async with running():
        asleep = await field.becomes("ControlPlane", name, "Hibernated")
        assert not await answers(field, name)
    async with running():
        assert await field.settles(lambda: field.reason("ControlPlane", name)) == "Hibernated"
        assert not await answers(field, name)
        assert (await field.get("ControlPlane", name))["status"]["hibernation"] == asleep["status"]["hibernation"]
        await wake(field, name)
        async with Client(config, field_manager="kplane") as client:
            assert (await client.list(NAMESPACES)).items


async def test_idle_control_plane_is_evicted_for_a_waking_one(
    mortal_field: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    field, running = mortal_field
    monkeypatch.setattr(rooms, "_IN_USE", timedelta(hours=1))
    monkeypatch.setattr(rooms, "_SPARED_SECONDS", 0.0)
    async with running(snapshots={"awake_limit": 1}) as url:
        for name in ("early", "late"):
            await field.create("ControlPlane", name, **ON_DEMAND)
            await field.becomes("ControlPlane", name, "Hibernated")
        await wake(field, "early")
        await annotate(field, "late", **{WAKE_REQUESTED_ANNOTATION: now()})
        waits = await field.becomes("ControlPlane", "late", "WaitsForRoom")
        assert (waits["status"]["phase"], condition(waits, "Ready")["status"]) == ("Hibernated", "True")
        assert condition(waits, "Hibernated")["reason"] == "WaitsForRoom"
        assert not await answers(field, "late")
        counted = await scraped(url, "kplane_on_demand_control_planes")
        assert counted == {'{state="awake"}': 1.0, '{state="asleep"}': 0.0, '{state="waiting"}': 1.0}
        assert await field.reason("ControlPlane", "early") == "Reconciled"

        # Control plane early now counts as idle.
        monkeypatch.setattr(rooms, "_IN_USE", timedelta(0))
        woken = await field.becomes("ControlPlane", "late", "Reconciled")
        assert "hibernation" not in woken["status"]
        slept = await field.becomes("ControlPlane", "early", "Hibernated")
        assert slept["status"]["hibernation"]["reason"] == "RoomNeeded"
        assert not await answers(field, "early")


async def scraped(url: str, metric: str) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        lines = (line.rsplit(" ", 1) for line in (await answer.text()).splitlines() if line.startswith(metric))
        return {labels.removeprefix(metric): float(value) for labels, value in lines}
