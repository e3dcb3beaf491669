"""The end of an instance or of a registration enqueues the control plane that waits for this end."""

from __future__ import annotations

from typing import Any

import pytest

from kplane.controlplane_operator.watch.stores import Stores

from .watched import Watched


def control_plane(name: str, *, deleting: bool) -> dict[str, Any]:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
    return {"metadata": metadata | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}), "spec": {}}


def registration(version: int, *, of: str, **status: Any) -> dict[str, Any]:
    metadata = {"name": "r", "uid": "uid-r", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"controlPlaneRef": {"name": of}}, "status": status}


WORKING = {"instance": {"controlPlaneUID": "uid-old"}}
RESOLVED = {"ready": True, "controlPlaneUID": "uid-old"}


@pytest.mark.parametrize("before", [WORKING, RESOLVED], ids=["instance", "resolved"])
@pytest.mark.parametrize("after", [{}, None], ids=["ended", "deleted"])
@pytest.mark.parametrize("deleting", [True, False])
async def test_moved_registration_enqueues_its_former_control_plane(
    before: dict[str, Any], after: dict[str, Any] | None, *, deleting: bool
) -> None:
    stores = Stores()
    stores.control_planes.apply(control_plane("old", deleting=deleting))
    stores.registrations.apply(registration(1, of="new", **before))
    watched = Watched(stores)
    if after is None:
        stores.registrations.remove(registration(1, of="new", **before))
    else:
        stores.registrations.apply(registration(2, of="new", **after))
    # A deleted registration also enqueues a control plane that is not being deleted.
    assert len(watched.names("controlplane")) == int(deleting or after is None)
