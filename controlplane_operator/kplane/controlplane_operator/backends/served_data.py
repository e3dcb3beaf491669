"""Records of served data, which the operator compares with the data in etcd.

This module imports `kplane.data`, which loads grpcio. The command reads `lost_data` without grpcio.
"""

from __future__ import annotations

from kplane.api import ControlPlane
from kplane.data import ServedData

__all__ = ["given_up", "served_data"]


def served_data(control_plane: ControlPlane) -> ServedData | None:
    """Return the record of the data that an API server has served.

    Returns None if no API server has served data yet, or a user has accepted their loss.
    """
    status = control_plane.status
    if control_plane.is_data_loss_accepted or (status.endpoint is None and status.data_identity is None):
        return None
    return ServedData(identity=status.data_identity, cluster_uid=status.cluster_uid)


def given_up(control_plane: ControlPlane) -> str | None:
    """Return the identity of the data whose loss a user accepted; None if no user accepted a loss."""
    return control_plane.status.data_identity if control_plane.is_data_loss_accepted else None
