"""When the data of a control plane are lost, and what a person does about it.

Each home has an identity of its data in etcd (`kplane.data.identity`), which the status records when it is published.
"""

from __future__ import annotations

from kplane.api import ControlPlane
from kplane.api.names import ACCEPT_DATA_LOSS_ANNOTATION
from kplane.controlplane_operator.reasons import Reason
from kplane.controlplane_operator.status.errors import ConditionError

__all__ = ["accepted_value", "data_lost", "expected_identity", "is_used"]


def expected_identity(control_plane: ControlPlane) -> str | None:
    """Return the identity that the data have to have; None before they have one, and after a user accepted the loss."""
    return None if _is_accepted(control_plane) else control_plane.status.data_identity


def is_used(control_plane: ControlPlane) -> bool:
    """Tell whether an API server has served the data before, so that an empty etcd is not the one that it was."""
    known = control_plane.status.endpoint is not None or control_plane.status.data_identity is not None
    return known and not _is_accepted(control_plane)


def data_lost(control_plane: ControlPlane, *, told: str) -> ConditionError:
    """Return the error of a control plane whose etcd does not have its data, as `told`."""
    return ConditionError(
        Reason.DATA_LOST,
        f"failed to find the data of the control plane: {told}; no API server runs on this. Restore the etcd or its"
        " volume, or delete the control plane and restore a snapshot. To continue with the data that are there now, if"
        f" any, set annotation {ACCEPT_DATA_LOSS_ANNOTATION} to {accepted_value(control_plane)}",
    )


def accepted_value(control_plane: ControlPlane) -> str:
    """Return the value of the annotation that accepts the loss: of these data only, so that a later loss is another."""
    return control_plane.status.data_identity or control_plane.metadata.uid or ""


def _is_accepted(control_plane: ControlPlane) -> bool:
    return control_plane.metadata.annotations.get(ACCEPT_DATA_LOSS_ANNOTATION) == accepted_value(control_plane)
