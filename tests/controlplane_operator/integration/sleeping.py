"""Helpers for tests of control planes that start on demand."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from kplane.api.names import WAKE_REQUESTED_ANNOTATION
from kplane.controlplane_operator.kinds import CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANES

ON_DEMAND = {"virtual": {"start": "OnDemand"}, "deletionPolicy": "Destroy"}


def condition(obj: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((item for item in obj["status"]["conditions"] if item["type"] == kind), {})


async def answers(field: Any, name: str) -> bool:
    """Return whether a program listens at the published endpoint of the control plane."""
    url = urlsplit((await field.get("ControlPlane", name))["status"]["endpoint"])
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection(url.hostname, url.port)
        writer.close()
        await writer.wait_closed()
        return True
    return False


async def annotate(field: Any, name: str, **annotations: str | None) -> None:
    await field.client.patch(CONTROL_PLANES, name, {"metadata": {"annotations": annotations}})


async def announce(field: Any, name: str, instance: dict[str, Any] | None) -> None:
    """Write `status.instance` of a registration, as mcm does. None removes the field."""
    body = {"status": {"instance": instance}}
    await field.client.patch(CONTROL_PLANE_REGISTRATIONS, name, body, subresource="status")


def now() -> str:
    return datetime.now(UTC).isoformat()


async def wake(field: Any, name: str) -> dict[str, Any]:
    await annotate(field, name, **{WAKE_REQUESTED_ANNOTATION: now()})
    return await field.becomes("ControlPlane", name, "Reconciled")
