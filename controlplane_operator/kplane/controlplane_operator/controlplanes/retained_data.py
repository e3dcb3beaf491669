"""Whose keys and data a management namespace stands for, as its metadata say it.

It stays when its control plane goes and the data are retained. Then it says who may take them over.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Self

from pydantic import ValidationError

from kplane.api import DEFAULT_DATA_STORE, DEFAULT_SERVICE_CIDR, ControlPlane, ControlPlaneMode, Home, Volume
from kplane.api.names import (
    ADOPT_ANNOTATION,
    ADOPTION_TOKEN_ANNOTATION,
    CLUSTER_PATH_ANNOTATION,
    CONTROL_PLANE_LABEL,
    DATA_IDENTITY_ANNOTATION,
    HOME_DATA_STORE_ANNOTATION,
    HOME_SLOT_ANNOTATION,
    HOME_VOLUME_ANNOTATION,
    MODE_ANNOTATION,
    RETAINED_LABEL,
    RETAINED_UID_ANNOTATION,
    SERVICE_CIDR_ANNOTATION,
    UID_ANNOTATION,
)
from kplane.api.reasons import Reason
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.cache import Object

__all__ = [
    "POD_SECURITY",
    "RetainedDataRecord",
    "check_adoption",
    "is_managed",
    "owned_metadata",
    "retained_metadata",
]

POD_SECURITY: Final = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/enforce-version": "v1.36",
}
"""Nothing that runs for a control plane needs more, and nothing else is to run in its namespace.

The version is the one that our pods are tested with. Without it an upgrade of the management cluster may refuse them.
"""

_TOKEN_BYTES: Final = 24


def is_managed(control_plane: ControlPlane) -> bool:
    """Tell whether kplane runs the API server, and so keeps keys and data that outlive the control plane."""
    return control_plane.spec.endpoint_ref is None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedDataRecord:
    """Whose keys and data a management namespace stands for."""

    namespace: str
    name: str
    """Of the control plane, as a label value."""
    uid: str
    """Of the control plane that made the data or took them over last; it may be gone."""
    mode: str
    cluster_path: str | None
    """None for mode Dedicated."""
    created: datetime
    slot: int = 0
    """Of the home of the data."""
    volume: Volume | None = None
    """Of that home."""
    data_store: str | None = None
    """Of that home."""
    data_identity: str | None = None
    """Of the data of a control plane that is gone; None if it was not known."""
    service_cidr: str = DEFAULT_SERVICE_CIDR
    adoption_token: str | None = field(default=None, repr=False)
    """Who names it may take the data over; None while the control plane lives, and no control plane may."""

    @classmethod
    def of(cls, namespace: Object) -> Self | None:
        """Read the record; None where there is none, or where the namespace is not labelled as one of ours."""
        metadata = namespace["metadata"]
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        uid = annotations.get(RETAINED_UID_ANNOTATION) or annotations.get(UID_ANNOTATION)
        if CONTROL_PLANE_LABEL not in labels or not uid:
            return None
        created = metadata.get("creationTimestamp")
        return cls(
            namespace=metadata["name"],
            name=labels[CONTROL_PLANE_LABEL],
            uid=uid,
            mode=annotations.get(MODE_ANNOTATION, ""),
            cluster_path=annotations.get(CLUSTER_PATH_ANNOTATION),
            service_cidr=annotations.get(SERVICE_CIDR_ANNOTATION, DEFAULT_SERVICE_CIDR),
            slot=1 if annotations.get(HOME_SLOT_ANNOTATION) == "1" else 0,
            volume=_volume(annotations.get(HOME_VOLUME_ANNOTATION)),
            data_store=annotations.get(HOME_DATA_STORE_ANNOTATION) or None,
            data_identity=annotations.get(DATA_IDENTITY_ANNOTATION) or None,
            created=datetime.fromisoformat(created) if created else datetime.max.replace(tzinfo=UTC),
            adoption_token=annotations.get(ADOPTION_TOKEN_ANNOTATION) or None,
        )

    @property
    def home(self) -> Home | None:
        """Where the data live; None where that is not known."""
        try:
            return Home.model_validate(
                {"mode": self.mode, "slot": self.slot, "volume": self.volume, "dataStore": self.data_store}
            )
        except ValidationError:
            return None

    def is_of(self, control_plane: ControlPlane) -> bool:
        """Tell whether keys and data are those of this very control plane, and not of an earlier one of its name."""
        return self.uid == control_plane.metadata.uid


def owned_metadata(control_plane: ControlPlane) -> dict[str, Any]:
    """Return what makes a namespace the record of a living control plane, as a merge patch of its metadata."""
    return {
        "labels": {RETAINED_LABEL: None, **POD_SECURITY},
        "annotations": {
            UID_ANNOTATION: control_plane.metadata.uid,
            RETAINED_UID_ANNOTATION: None,
            ADOPTION_TOKEN_ANNOTATION: None,
            DATA_IDENTITY_ANNOTATION: None,
            **_home_annotations(control_plane),
            SERVICE_CIDR_ANNOTATION: control_plane.status.service_cidr,
        },
    }


def retained_metadata(record: RetainedDataRecord, *, home: ControlPlane | None = None) -> dict[str, Any]:
    """Return what makes a namespace the record of a control plane that is gone, as a merge patch of its metadata.

    A token that it has already is kept. `home` is the control plane, where it is known where its data live.
    """
    return {
        "labels": {RETAINED_LABEL: "true", **POD_SECURITY},
        "annotations": {
            UID_ANNOTATION: None,
            RETAINED_UID_ANNOTATION: record.uid,
            # Not the uid, which is no secret: it was in lists of control planes, in Events and in registrations.
            ADOPTION_TOKEN_ANNOTATION: record.adoption_token or secrets.token_urlsafe(_TOKEN_BYTES),
            **(_home_annotations(home) if home is not None else {}),
            **({DATA_IDENTITY_ANNOTATION: home.status.data_identity} if home is not None else {}),
        },
    }


def check_adoption(control_plane: ControlPlane, *, record: RetainedDataRecord) -> None:
    """Raise ConditionError (DataRetained) unless the control plane may take over what an earlier one of its name left.

    The token is not told: to know it is to have read the namespace, which is its administrators' right.
    """
    where = f"namespace {record.namespace} keeps the data of an earlier control plane of this name"
    given = control_plane.metadata.annotations.get(ADOPT_ANNOTATION)
    if control_plane.spec.source is not None:
        raise _retained(f"{where}, and spec.source would write over them; give the control plane another name")
    if given is None:
        raise _retained(
            f"{where}; to take them over, set annotation {ADOPT_ANNOTATION} to the value of annotation"
            f" {ADOPTION_TOKEN_ANNOTATION} of that namespace; to delete them, set it and spec.deletionPolicy Destroy,"
            " and delete the control plane"
        )
    if record.adoption_token is None or not hmac.compare_digest(given.encode(), record.adoption_token.encode()):
        raise _retained(
            f"{where}, and annotation {ADOPT_ANNOTATION} does not match; set it to the value of annotation"
            f" {ADOPTION_TOKEN_ANNOTATION} of that namespace, or give the control plane another name"
        )
    if not is_managed(control_plane):
        raise _retained(
            f"{where}, whose API server kplane ran; remove spec.endpointRef, or give the control plane another name"
        )
    if control_plane.home.mode != record.mode:
        raise _retained(
            f"{where}, of mode {record.mode or 'unknown'}; create the control plane with that spec.mode instead of"
            f" {control_plane.home.mode}, or give it another name"
        )
    if control_plane.home.volume != record.volume:
        raise _retained(
            f"{where}, on volumes that spec.dedicated.volume asked for as {_told(record.volume)}; set it so instead of"
            f" {_told(control_plane.home.volume)}, or give the control plane another name"
        )
    if control_plane.home.data_store != record.data_store:
        kept = record.data_store or DEFAULT_DATA_STORE
        raise _retained(
            f"{where}, in data store {kept}; set spec.virtual.dataStoreRef to that instead of"
            f" {control_plane.home.data_store or DEFAULT_DATA_STORE}, or give the control plane another name"
        )
    if _cluster_path(control_plane) != record.cluster_path:
        raise _retained(
            f"{where}, under clusterPath {record.cluster_path!r}; set spec.virtual.clusterPath to that instead of"
            f" {_cluster_path(control_plane)!r}, or give the control plane another name"
        )


def _home_annotations(control_plane: ControlPlane) -> dict[str, str | None]:
    home = control_plane.home
    return {
        MODE_ANNOTATION: str(home.mode),
        HOME_SLOT_ANNOTATION: str(home.slot) if home.slot else None,
        HOME_VOLUME_ANNOTATION: _recorded_volume(home.volume),
        HOME_DATA_STORE_ANNOTATION: home.data_store,
        CLUSTER_PATH_ANNOTATION: _cluster_path(control_plane),
    }


def _cluster_path(control_plane: ControlPlane) -> str | None:
    return control_plane.cluster_path if control_plane.home.mode is ControlPlaneMode.VIRTUAL else None


def _volume(text: str | None) -> Volume | None:
    try:
        return Volume.model_validate_json(text) if text else None
    except ValidationError:
        return None


def _recorded_volume(volume: Volume | None) -> str | None:
    return volume.model_dump_json(by_alias=True, exclude_none=True) if volume is not None else None


def _told(volume: Volume | None) -> str:
    return _recorded_volume(volume) or "nothing"


def _retained(message: str) -> ConditionError:
    return ConditionError(Reason.DATA_RETAINED, message)
