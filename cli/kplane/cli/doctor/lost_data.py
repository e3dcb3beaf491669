"""Control planes whose data are lost, each with its remedies."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from kplane.api import READY, ControlPlane, ControlPlaneSnapshot, SnapshotPhase, find_condition
from kplane.api.names import ACCEPT_DATA_LOSS_ANNOTATION
from kplane.api.reasons import Reason
from kplane.cli.doctor.finding import Finding, error
from kplane.cli.doctor.survey import Survey

__all__ = ["check_lost_data"]

_RESTORE: Final = (
    "delete the control plane with deletionPolicy Destroy, then `kplane backup restore {snapshot} {name}"
    " --identity-secret SECRET`"
)
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


async def check_lost_data(survey: Survey) -> Sequence[Finding]:
    """Find control planes without their data.

    Each finding names the newest snapshot, and the command to accept the loss.
    """
    return [
        error(
            f"{ControlPlane.resource.kind} {control_plane.name}",
            _problem(control_plane, survey),
            _accept(control_plane),
        )
        for control_plane in survey.control_planes
        if not control_plane.deleting and _is_lost(control_plane)
    ]


def _is_lost(control_plane: ControlPlane) -> bool:
    ready = find_condition(control_plane.status.conditions, READY)
    return ready is not None and ready.status != "True" and ready.reason == Reason.DATA_LOST


def _problem(control_plane: ControlPlane, survey: Survey) -> str:
    """Return the problem with its remedies, those that keep data first.

    The command of the finding is the last remedy.
    """
    identity = control_plane.status.data_identity
    suffix = f" (identity {identity})" if identity is not None else ""
    return (
        f"its etcd does not have the data that it served{suffix}, so no API server runs ({Reason.DATA_LOST}). Restore"
        " the etcd or its volume: the API server starts by itself then; or restore a snapshot:"
        f" {_snapshot(control_plane, survey)}; or remove its Nodes, whose kubelets delete all Pods otherwise, and"
        " accept the loss by this command"
    )


def _snapshot(control_plane: ControlPlane, survey: Survey) -> str:
    """Return the command to restore the newest snapshot, or the reason why there is none."""
    kind = ControlPlaneSnapshot.resource.kind
    if (cause := survey.unread.get(kind)) is not None:
        return f"snapshots could not be read: {cause}"
    newest = max(
        (candidate for candidate in survey.snapshots if _is_of(candidate, control_plane)),
        key=lambda snapshot: snapshot.status.completion_time or _LONG_AGO,
        default=None,
    )
    if newest is None:
        return "there is no Completed one of it"
    completed = newest.status.completion_time
    saved = f" of {completed.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if completed is not None else ""
    return f"{newest.name}{saved} is the newest: {_RESTORE.format(name=control_plane.name, snapshot=newest.name)}"


def _is_of(snapshot: ControlPlaneSnapshot, control_plane: ControlPlane) -> bool:
    """Return whether a snapshot is complete, and of this control plane: not of an earlier control plane of its name."""
    return (
        not snapshot.deleting
        and snapshot.status.phase is SnapshotPhase.COMPLETED
        and snapshot.spec.control_plane_ref.name == control_plane.name
        and snapshot.status.control_plane_uid in {None, control_plane.metadata.uid}
    )


def _accept(control_plane: ControlPlane) -> str:
    annotation = f"{ACCEPT_DATA_LOSS_ANNOTATION}={shlex.quote(control_plane.data_loss_acceptance)}"
    return f"kubectl annotate controlplane {control_plane.name} {annotation} --overwrite"
