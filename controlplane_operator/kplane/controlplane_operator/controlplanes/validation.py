"""What a control plane must satisfy before anything is made for it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from kplane.api import CLUSTER_PATH_PATTERN, RESERVED_CLUSTER_PATHS, AuthModel, ControlPlane, ControlPlaneClass
from kplane.api.names import ADOPT_ANNOTATION
from kplane.controlplane_operator.controlplanes.address_claims import is_etcd_address
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.reasons import Reason

__all__ = ["Claim", "check_class", "check_cluster_path", "check_unclaimed"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A control plane's wish for a place, which is to be its own: data under a path of an etcd, or an API server."""

    name: str
    uid: str
    address: str
    cluster_path: str | None
    """None where the whole API server is meant."""
    held: bool
    """The place was already granted to this one: data may be there."""
    created: datetime
    kept_by: str | None = None
    """The namespace that records whose data lie under the path, where the control plane itself is gone."""

    def goes_before(self, other: Claim) -> bool:
        """Whether this one has the better right to a place that both want: the holder, then the older, then by uid."""
        return (not self.held, self.created, self.uid) < (not other.held, other.created, other.uid)


def check_cluster_path(control_plane: ControlPlane) -> None:
    """Raise ConditionError where the path cannot be one: InvalidClusterPath, ClusterPathReserved."""
    path = control_plane.cluster_path
    granted = control_plane.status.cluster_path
    how = (
        "" if control_plane.spec.virtual is not None else " (the object's name, as spec.virtual.clusterPath is not set)"
    )
    if len(path) > 63 or not re.fullmatch(CLUSTER_PATH_PATTERN.strip("^$"), path):
        raise ConditionError(
            Reason.INVALID_CLUSTER_PATH,
            f"clusterPath {path!r}{how} is no DNS label: set spec.virtual.clusterPath to at most 63 lower-case letters,"
            " digits and '-', with a letter or digit at both ends",
        )
    if path in RESERVED_CLUSTER_PATHS:
        raise ConditionError(
            Reason.CLUSTER_PATH_RESERVED,
            f"clusterPath {path!r}{how} is reserved; set spec.virtual.clusterPath to another one",
        )
    if granted is not None and granted != path:
        raise ConditionError(
            Reason.INVALID_CLUSTER_PATH,
            f"clusterPath cannot change from {granted!r} to {path!r}, because the data lies under it;"
            " set spec.virtual.clusterPath back",
        )


def check_unclaimed(claim: Claim, *, others: Iterable[Claim]) -> None:
    """Raise ConditionError where another control plane has the better right to the place.

    ClusterPathInUse or EndpointInUse where that one is there, DataRetained where it is gone and its data are not.
    """
    for other in others:
        if other.address != claim.address or other.uid == claim.uid or not other.goes_before(claim):
            continue
        if other.kept_by is not None:
            raise ConditionError(
                Reason.DATA_RETAINED,
                f"clusterPath {claim.cluster_path!r} holds what control plane {other.name} left, as namespace"
                f" {other.kept_by} records; choose another spec.virtual.clusterPath, or name this control plane"
                f" {other.name} and take the data over by annotation {ADOPT_ANNOTATION}",
            )
        if claim.cluster_path is None:
            raise ConditionError(
                Reason.ENDPOINT_IN_USE,
                f"the API server at {claim.address} is that of control plane {other.name}, and cannot be another one's;"
                " correct the endpoint's URL, or delete that one",
            )
        raise ConditionError(
            Reason.CLUSTER_PATH_IN_USE,
            f"clusterPath {claim.cluster_path!r} is in use by control plane {other.name} on the same API server;"
            " choose another spec.virtual.clusterPath, or delete that one",
            # Who wants an address is known only from endpoints, which may be edited without a trace here.
            waits_for_event=is_etcd_address(claim.address),
        )


def check_class(control_plane: ControlPlane, *, chosen: ControlPlaneClass) -> None:
    """Raise ConditionError where the control plane cannot follow the class: ModeNotAllowed, AuthModelNotSupported."""
    allowed = chosen.spec.modes_allowed
    if allowed and control_plane.spec.mode not in allowed:
        raise ConditionError(
            Reason.MODE_NOT_ALLOWED,
            f"mode {control_plane.spec.mode} is not allowed by ControlPlaneClass {chosen.name}, which allows"
            f" {' and '.join(allowed)}; name another class",
        )
    if chosen.spec.auth.model is AuthModel.X509 and control_plane.spec.endpoint_ref is not None:
        raise ConditionError(
            Reason.AUTH_MODEL_NOT_SUPPORTED,
            f"auth.model x509 of ControlPlaneClass {chosen.name} needs the control plane's client CA, which whoever"
            " runs its API server keeps; name a class with model token",
        )
