"""An operator without a shared etcd names the missing flag in the condition of virtual control planes."""

from __future__ import annotations

from typing import Any

import pytest

from kplane.controlplane_operator.kinds import CONTROL_PLANES

pytestmark = pytest.mark.integration


async def test_virtual_control_plane_without_etcd_fails_and_can_be_deleted(
    field_without_etcd: Any,
) -> None:
    field = field_without_etcd
    await field.create("ControlPlane", "homeless", deletionPolicy="Destroy")
    control_plane = await field.becomes("ControlPlane", "homeless", "Failed")
    assert (
        "--shared-etcd-endpoint"
        in next(c for c in control_plane["status"]["conditions"] if c["type"] == "Ready")["message"]
    )
    await field.client.delete(CONTROL_PLANES, "homeless")
    await field.gone(CONTROL_PLANES, "homeless")
