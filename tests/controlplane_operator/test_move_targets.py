"""Targets that a control plane cannot move to, even if its class asks for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kplane.api import ControlPlane, ControlPlaneMode, Home
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.data_stores import DataStores
from kplane.controlplane_operator.controlplanes.provisioners import Provisioners
from kplane.controlplane_operator.status.errors import ConditionError


def lacking(control_plane: ControlPlane) -> None:
    if control_plane.home.data_store == "typo":
        raise ConditionError(Reason.DATA_STORE_NOT_FOUND, "there is no data store typo")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (Home(mode=ControlPlaneMode.VIRTUAL, data_store="typo"), "DataStoreNotFound"),
        (Home(mode=ControlPlaneMode.VIRTUAL, data_store="east"), "ClusterPathInUse"),
    ],
)
def test_check_target_refuses_missing_data_store_or_taken_path(target: Home, reason: str) -> None:
    def taken(_: ControlPlane) -> None:
        raise ConditionError(Reason.CLUSTER_PATH_IN_USE, "the path is another's")

    unused: Any = SimpleNamespace()
    stores = cast("DataStores", SimpleNamespace(check=lacking))
    provisioners = Provisioners(data_stores=stores, dedicated=unused, adopted=unused)
    control_plane = ControlPlane.model_validate({"metadata": {"name": "acme"}, "spec": {}})
    with pytest.raises(ConditionError) as refused:
        provisioners.check_target(control_plane.at(target), claim=taken)
    assert refused.value.reason == reason
