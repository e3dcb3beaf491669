"""Two mcm whose selectors overlap. The first mcm runs and reports the instance, and the second mcm does not write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kplane.provider import Event, Informer
from kplane.provider.providers.kplane import REGISTRATIONS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

Eventually = Callable[..., Any]
_PATIENCE = 120.0
_WATCH_SECONDS = 10.0
"""Time of observation. Each mcm looks at the Lease once a second, so many changes would be possible."""


async def test_registration_does_not_change_while_a_second_mcm_is_held(
    mcm_of: Any, api_server: Any, fleet: Any, tenants: Any, eventually: Eventually
) -> None:
    """The status is read from a watch, so that no change between two reads is missed."""
    tenant = tenants["one"]
    first, second = (mcm_of(api_server.mcm_kubeconfig, quick=True) for _ in range(2))
    name = await fleet.register("shared", tenant.controllers_secret(), server=tenant.server)

    async def runs() -> bool:
        return bool((await fleet.condition("shared")).get("status") == "True")

    first.start()
    await eventually(runs, timeout=_PATIENCE)
    pids = first.instances()
    registrations = Informer(fleet.client, REGISTRATIONS)
    reports: list[tuple[Any, Any]] = []

    def note(event: Event) -> None:
        if event.object["metadata"]["name"] == name:
            reports.append(report_of(event.object))

    watching = asyncio.create_task(registrations.run(note))
    try:
        await eventually(lambda: reports, timeout=_PATIENCE)
        second.start()
        started_at = time.monotonic()

        def is_held() -> bool:
            return "another mcm runs the instance" in second.log.read_text()

        await eventually(is_held, timeout=_PATIENCE)
        await eventually(lambda: time.monotonic() - started_at > _WATCH_SECONDS, timeout=_PATIENCE)
        assert first.instances() == pids
        assert second.clusters()[name]["pid"] is None
        assert second.log.read_text().count("another mcm runs the instance") == 1
        # The end of an mcm without an instance does not change the status.
        second.end()
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    condition, instance = report_of(await fleet.client.get(REGISTRATIONS, name))
    assert condition["status"] == "True"
    assert instance["controlPlaneUID"] == fleet.uid_at(tenant.server)
    assert [report for report in reports if report != (condition, instance)] == []


def report_of(registration: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the condition Running and `status.instance`."""
    status = registration["status"]
    running: dict[str, str] = next((item for item in status.get("conditions", ()) if item["type"] == "Running"), {})
    return running, status.get("instance")
