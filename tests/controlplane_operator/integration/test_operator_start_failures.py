"""A failed start of a control plane appears in its condition, an Event and the metrics."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANES
from kplane.provider.client.resources import EVENTS

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

NAME = "crashing"


async def test_crashing_api_server_is_reported_as_start_failed(field: Any) -> None:
    # kube-apiserver refuses the value and ends: ServerRunOptions.Validate of k8s.io/apiserver.
    await field.create("ControlPlaneClass", NAME, apiServer={"extraArgs": ["--max-requests-inflight=-1"]})
    await field.create("ControlPlane", NAME, classRef={"name": NAME}, deletionPolicy="Destroy")
    control_plane = await field.becomes("ControlPlane", NAME, "StartFailed", timeout=240)
    assert control_plane["status"]["phase"] == "Provisioning"

    async def warnings() -> list[str]:
        events = (await field.client.list(EVENTS, namespace="default")).items
        return [
            event["reason"]
            for event in events
            if event["involvedObject"]["name"] == NAME and event["type"] == "Warning"
        ]

    assert await field.eventually(warnings, lambda seen: "StartFailed" in seen)

    async def series() -> str:
        async with aiohttp.ClientSession() as session, session.get(f"{field.url}/metrics") as answer:
            return await answer.text()

    counted = 'kplane_reconcile_failures_total{controller="controlplane",reason="StartFailed"}'
    assert await field.eventually(series, lambda text: counted in text)
    await field.client.delete(CONTROL_PLANES, NAME)
    await field.gone(CONTROL_PLANES, NAME)
    await field.client.delete(CONTROL_PLANE_CLASSES, NAME)
