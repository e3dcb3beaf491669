"""Control planes that start on demand: what tests ask of them."""

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
    return next((each for each in obj["status"]["conditions"] if each["type"] == kind), {})


async def answers(field: Any, name: str) -> bool:
    """Tell whether a program listens where the control plane is published."""
    where = urlsplit((await field.get("ControlPlane", name))["status"]["endpoint"])
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.close()
        await writer.wait_closed()
        return True
    return False


async def annotate(field: Any, name: str, **annotations: str | None) -> None:
    await field.client.patch(CONTROL_PLANES, name, {"metadata": {"annotations": annotations}})


async def announce(field: Any, name: str, instance: dict[str, Any] | None) -> None:
    """Say of a registration, as mcm does, that an instance works for it, or none any more."""
    body = {"status": {"instance": instance}}
    await field.client.patch(CONTROL_PLANE_REGISTRATIONS, name, body, subresource="status")


def now() -> str:
    return datetime.now(UTC).isoformat()


async def wake(field: Any, name: str) -> dict[str, Any]:
    await annotate(field, name, **{WAKE_REQUESTED_ANNOTATION: now()})
    return await field.becomes("ControlPlane", name, "Reconciled")
