"""An operator that was given no shared etcd serves everything else, and says what it lacks."""

from __future__ import annotations

from typing import Any

import pytest

from kplane.controlplane_operator.kinds import CONTROL_PLANES

pytestmark = pytest.mark.integration


async def test_without_a_shared_etcd_a_virtual_control_plane_says_so_and_can_be_deleted(
    field_without_etcd: Any,
) -> None:
    field = field_without_etcd
    await field.create("ControlPlane", "homeless", deletionPolicy="Destroy")
    found = await field.becomes("ControlPlane", "homeless", "Failed")
    assert "--shared-etcd-endpoint" in next(c for c in found["status"]["conditions"] if c["type"] == "Ready")["message"]
    await field.client.delete(CONTROL_PLANES, "homeless")
    await field.gone(CONTROL_PLANES, "homeless")
