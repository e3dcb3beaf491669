"""Records of served data, which the operator compares with the data in etcd.

This module imports `kplane.data`, which loads grpcio. The command reads `lost_data` without grpcio.
"""

from __future__ import annotations

from typing import Final

from kplane.api import ControlPlane
from kplane.data import ServedData
from kplane.data.revision import MOST_RAISED

__all__ = ["UNSEEN_REVISIONS", "given_up", "recorded_revision", "revision_after_loss", "served_data"]

UNSEEN_REVISIONS: Final = MOST_RAISED - 100_000
"""Upper bound for the revisions since the last one in the status, which a pass records at least every five minutes.

A shared etcd that is at most 100,000 revisions behind that record can still be raised above the bound.
"""


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


def recorded_revision(control_plane: ControlPlane) -> int | None:
    """Return the highest revision that the status records, without the bound; None if it records no revision."""
    status = control_plane.status
    revisions = [status.served_revision]
    if status.restore is not None:
        revisions.append(status.restore.begins_at)
    if status.migration is not None and status.migration.cut_time is not None:
        revisions.append(status.migration.begins_at)
    return max((revision for revision in revisions if revision is not None), default=None)


def revision_after_loss(control_plane: ControlPlane) -> int | None:
    """Return the revision at which an etcd begins after the accepted loss of the former one.

    It is above each revision that clients saw, so that each of their watches gets 410 Expired. Returns None if the
    status has no served revision.
    """
    recorded = recorded_revision(control_plane)
    if control_plane.status.served_revision is None or recorded is None:
        return None
    return recorded + UNSEEN_REVISIONS + 1
