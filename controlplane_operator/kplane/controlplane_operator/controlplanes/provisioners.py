"""Choice of the provisioner for each control plane."""

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
    """The provisioners of modes Virtual and Dedicated and of adopted control planes."""

    def __init__(self, *, data_stores: DataStores, dedicated: Movable, adopted: Provisioner) -> None:
        self._data_stores = data_stores
        self.dedicated: Final = dedicated
        self.adopted: Final = adopted

    def wanted(self, control_plane: ControlPlane) -> Provisioner:
        """Return the provisioner that the spec asks for."""
        return self.adopted if control_plane.spec.endpoint_ref is not None else self.managed(control_plane)

    def managed(self, control_plane: ControlPlane) -> Provisioner:
        """Return the provisioner with which kplane itself would run the API server."""
        return self.home(control_plane)

    def used(self, control_plane: ControlPlane) -> Provisioner:
        """Return the provisioner recorded when the control plane was made, even if its spec has changed since."""
        recorded = find_condition(control_plane.status.conditions, MANAGED)
        if recorded is None:
            return self.wanted(control_plane)
        return self.managed(control_plane) if recorded.status == "True" else self.adopted

    def let_go(self, uid: str | None) -> None:
        """Stop background repairs of the control plane with this uid until it is ensured again."""
        if uid is None:
            return
        for provisioner in (self._data_stores, self.dedicated, self.adopted):
            provisioner.let_go(uid)

    def home(self, control_plane: ControlPlane) -> Movable:
        """Return the provisioner of the home in the status."""
        return self.dedicated if control_plane.home.mode is ControlPlaneMode.DEDICATED else self.virtual(control_plane)

    def check_home(self, control_plane: ControlPlane) -> None:
        """Raise ConditionError (DataStoreNotFound) if the operator does not have the data store of the home."""
        if control_plane.home.mode is ControlPlaneMode.VIRTUAL and is_managed(control_plane):
            self._data_stores.check(control_plane)

    def check_target(self, control_plane: ControlPlane, *, claim: Callable[[ControlPlane], None]) -> None:
        """Raise ConditionError if the control plane cannot move to the home that its status has here.

        The reason is DataStoreNotFound, or `claim` raises because another control plane holds the path. The check keeps
        a typo in a class from starting a migration.
        """
        self.check_home(control_plane)
        claim(control_plane)

    def virtual(self, control_plane: ControlPlane) -> Hibernating:
        """Return the provisioner of a control plane of mode Virtual."""
        return self._data_stores.of(control_plane)

    def address(self, control_plane: ControlPlane) -> str | None:
        """Return the address that the control plane claims for itself; None if it claims none.

        A control plane that moved out of the shared etcd keeps its path there, for the gateway and for a way back.
        """
        provisioner = self.used(control_plane)
        if provisioner is self.dedicated and control_plane.status.cluster_path is not None:
            return self.virtual(control_plane).address(control_plane)
        return provisioner.address(control_plane)
