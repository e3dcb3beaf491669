"""State of a control plane before its first status, read from its namespace.

The namespace is created first and records the place of the control plane. If a pass is cut off before its status, a
later pass or a removal reads the record.
"""

from __future__ import annotations

from collections.abc import Iterable

from kplane.api import Condition, ControlPlane
from kplane.api.conditions import MANAGED
from kplane.api.names import ADOPT_ANNOTATION, CLAIMED_ADDRESS_ANNOTATION, CONTROL_PLANE_LABEL, label_value
from kplane.api.reasons import Reason
from kplane.controlplane_operator.controlplanes.retained_data import RetainedDataRecord
from kplane.controlplane_operator.status.conditions import with_condition
from kplane.controlplane_operator.watch.addresses import owner_uids
from kplane.controlplane_operator.watch.cache import Object

__all__ = ["is_owned", "is_recorded", "needs_record", "record_of", "with_beginning", "with_managed"]


def record_of(namespace: Object, control_plane: ControlPlane) -> RetainedDataRecord | None:
    """Return the record of the namespace, if it is about this control plane or an earlier one of the same name."""
    record = RetainedDataRecord.of(namespace)
    return record if record is not None and record.name == label_value(control_plane.name) else None


def is_owned(namespace: Object, control_plane: ControlPlane) -> bool:
    """Return whether the namespace belongs to this control plane, and not to an earlier one of the same name."""
    record = record_of(namespace, control_plane)
    if record is not None:
        return record.is_of(control_plane)
    labels = namespace["metadata"].get("labels") or {}
    return labels.get(CONTROL_PLANE_LABEL) == label_value(control_plane.name) and (
        control_plane.metadata.uid in owner_uids(namespace)
    )


def is_recorded(control_plane: ControlPlane) -> bool:
    """Return whether the status records the objects that a removal has to delete."""
    return control_plane.status.deletion_policy is not None


def needs_record(control_plane: ControlPlane, *, namespace: Object | None) -> bool:
    """Return whether the status must record the planned objects before any of them is created.

    A new control plane needs no such status, because its namespace has the record. A control plane with `spec.source`
    or adopted data needs the status, because the data do not belong to it alone.
    """
    new = namespace is None and not is_recorded(control_plane) and not control_plane.status.conditions
    return not new or control_plane.spec.source is not None or ADOPT_ANNOTATION in control_plane.metadata.annotations


def with_beginning(control_plane: ControlPlane, *, namespace: Object | None) -> ControlPlane:
    """Return the control plane with the place that its namespace records, while the status does not record it yet."""
    if namespace is None or is_recorded(control_plane) or not is_owned(namespace, control_plane):
        return control_plane
    record = record_of(namespace, control_plane)
    annotations = namespace["metadata"].get("annotations") or {}
    update = {
        "home": control_plane.status.home or (record.home if record is not None else None),
        "cluster_path": record.cluster_path if record is not None else control_plane.status.cluster_path,
        "claimed_address": annotations.get(CLAIMED_ADDRESS_ANNOTATION),
        "conditions": with_managed(control_plane.status.conditions, of=control_plane, managed=record is not None),
    }
    return control_plane.model_copy(update={"status": control_plane.status.model_copy(update=update)})


def with_managed(conditions: Iterable[Condition], *, of: ControlPlane, managed: bool) -> list[Condition]:
    """Return the conditions with condition Managed, which shows whether kplane runs the API server."""
    return with_condition(
        conditions,
        of=of,
        type=MANAGED,
        status="True" if managed else "False",
        reason=Reason.RUN_BY_KPLANE if managed else Reason.ENDPOINT_REFERENCED,
        message="kplane runs the API server" if managed else "the API server at spec.endpointRef is used",
    )
