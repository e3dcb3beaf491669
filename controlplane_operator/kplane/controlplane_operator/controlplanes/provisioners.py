"""Which way to an API server is a control plane's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kplane.api import ControlPlane, ControlPlaneMode, find_condition
from kplane.api.conditions import MANAGED
from kplane.controlplane_operator.backends.base import Hibernating, Movable, Provisioner
from kplane.controlplane_operator.backends.data_stores import DataStores
from kplane.controlplane_operator.controlplanes.retained_data import is_managed

__all__ = ["Provisioners"]


class Provisioners:
    """The three ways to an API server, and which of them is a control plane's."""

    def __init__(self, *, data_stores: DataStores, dedicated: Movable, adopted: Provisioner) -> None:
        self._data_stores = data_stores
        self.dedicated: Final = dedicated
        self.adopted: Final = adopted

    def wanted(self, control_plane: ControlPlane) -> Provisioner:
        """Return the way that the spec asks for."""
        return self.adopted if control_plane.spec.endpoint_ref is not None else self.managed(control_plane)

    def managed(self, control_plane: ControlPlane) -> Provisioner:
        """Return the way by which kplane itself would run the API server."""
        return self.home(control_plane)

    def used(self, control_plane: ControlPlane) -> Provisioner:
        """Return the way that was chosen when the control plane was made, whatever its spec says by now."""
        recorded = find_condition(control_plane.status.conditions, MANAGED)
        if recorded is None:
            return self.wanted(control_plane)
        return self.managed(control_plane) if recorded.status == "True" else self.adopted

    def let_go(self, uid: str | None) -> None:
        """Repair nothing of a control plane by itself any more, until it is ensured again."""
        if uid is None:
            return
        for each in (self._data_stores, self.dedicated, self.adopted):
            each.let_go(uid)

    def home(self, control_plane: ControlPlane) -> Movable:
        """Return the way to the API server of the home that the status names."""
        return self.dedicated if control_plane.home.mode is ControlPlaneMode.DEDICATED else self.virtual(control_plane)

    def check_home(self, control_plane: ControlPlane) -> None:
        """Raise ConditionError (DataStoreNotFound) where the operator does not have the data store of the home."""
        if control_plane.home.mode is ControlPlaneMode.VIRTUAL and is_managed(control_plane):
            self._data_stores.check(control_plane)

    def check_target(self, control_plane: ControlPlane, *, claim: Callable[[ControlPlane], None]) -> None:
        """Raise ConditionError if a control plane cannot move to the home that it has here.

        DataStoreNotFound, or what `claim` raises if the path there is another's. A typo in the class must begin no
        move.
        """
        self.check_home(control_plane)
        claim(control_plane)

    def virtual(self, control_plane: ControlPlane) -> Hibernating:
        """Return the way to the API server of a control plane of mode Virtual."""
        return self._data_stores.of(control_plane)

    def address(self, control_plane: ControlPlane) -> str | None:
        """Name what the control plane is to have for itself.

        One that moved out of the shared etcd keeps its path there, for the gateway and for a way back.
        """
        used = self.used(control_plane)
        if used is self.dedicated and control_plane.status.cluster_path is not None:
            return self.virtual(control_plane).address(control_plane)
        return used.address(control_plane)
