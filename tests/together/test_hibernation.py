"""Control planes that start on demand have processes only while they are awake."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kplane.api.names import SLEEP_REQUESTED_ANNOTATION, WAKE_REQUESTED_ANNOTATION
from kplane.components.names import apiserver_name
from kplane.provider import Client
from kplane.provider.client.resources import SERVICE_ACCOUNTS

from .conftest import KINDS, pids_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

NAME = "nocturnal"


async def ask(platform: Any, annotation: str) -> None:
    metadata = {"annotations": {annotation: datetime.now(UTC).isoformat()}}
    await platform.client.patch(KINDS["ControlPlane"], NAME, {"metadata": metadata})


async def phase(platform: Any, wanted: str) -> None:
    async def now() -> str | None:
        return (await platform.status("ControlPlane", NAME)).get("phase")

    await platform.eventually(now, lambda found: found == wanted)


def api_servers(platform: Any) -> set[int]:
    return pids_of(Path(platform.handle.operator_directory, apiserver_name(NAME)), "kube-apiserver")


async def test_hibernated_control_plane_has_no_processes(platform: Any) -> None:
    await platform.create("ControlPlane", NAME, deletionPolicy="Destroy", virtual={"start": "OnDemand"})
    await platform.create("ControlPlaneRegistration", NAME, controlPlaneRef={"name": NAME}, services=["Controllers"])
    await phase(platform, "Hibernated")
    assert not api_servers(platform)
    assert platform.instance(NAME) is None

    await ask(platform, WAKE_REQUESTED_ANNOTATION)
    await phase(platform, "Ready")
    await platform.running(NAME)
    async with Client(await platform.tenant(NAME), field_manager="kplane") as client:
        # Only the controllers create the ServiceAccount.
        await platform.eventually(lambda: client.exists(SERVICE_ACCOUNTS, "default", namespace="default"))
    (first,) = api_servers(platform)

    await ask(platform, SLEEP_REQUESTED_ANNOTATION)
    await phase(platform, "Hibernated")
    assert not api_servers(platform)
    assert platform.instance(NAME) is None
    assert "instance" not in await platform.status("ControlPlaneRegistration", NAME)

    await ask(platform, WAKE_REQUESTED_ANNOTATION)
    await platform.running(NAME)
    assert api_servers(platform).isdisjoint({first})
