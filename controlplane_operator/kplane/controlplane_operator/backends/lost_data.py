"""Error of a control plane whose data are lost, with the remedies for a person.

Each home has an identity of its data in etcd (`kplane.data.identity`), which the status records at the publication.
"""

from __future__ import annotations

from kplane.api import ControlPlane
from kplane.api.names import ACCEPT_DATA_LOSS_ANNOTATION
from kplane.api.reasons import Reason
from kplane.controlplane_operator.status.errors import ConditionError

__all__ = ["data_lost"]


def data_lost(control_plane: ControlPlane, *, told: str) -> ConditionError:
    """Return the error of a control plane whose data are lost; `told` describes the cause."""
    return ConditionError(
        Reason.DATA_LOST,
        f"failed to find the data of the control plane: {told}; no API server runs on this. Restore the etcd or its"
        " volume, or delete the control plane and restore a snapshot. To continue with the data that are there now, if"
        f" any, set annotation {ACCEPT_DATA_LOSS_ANNOTATION} to {control_plane.data_loss_acceptance}",
    )
