"""Who holds a clusterPath, and so whose data is removed with it."""

from __future__ import annotations

from typing import Any

import pytest

from api import ControlPlane
from controlplane_operator.claims import Claims
from controlplane_operator.fanout import Stores
from controlplane_operator.trouble import Trouble


def stored(stores: Stores, name: str, version: int, *, path: str, granted: str | None, **metadata: Any) -> ControlPlane:
    obj = {
        "metadata": {"name": name, "uid": name, "resourceVersion": str(version), **metadata},
        "spec": {"virtual": {"clusterPath": path}},
        "status": {"clusterPath": granted} if granted else {},
    }
    stores.control_planes.apply(obj)
    return ControlPlane.model_validate(obj)


def test_a_path_stays_its_holders_where_the_spec_was_edited_before_the_grant_was_written_down() -> None:
    stores = Stores()
    claims = Claims(stores, realm=lambda _: "shared etcd")
    edited = stored(
        stores, "edited", 1, path="second", granted="first", deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["f"]
    )
    assert claims.holds(edited)
    late = stored(stores, "late", 2, path="first", granted=None)
    with pytest.raises(Trouble, match="in use by control plane edited"):
        claims.take(late)
    assert not claims.holds(late)
