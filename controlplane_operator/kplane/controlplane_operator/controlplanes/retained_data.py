"""Record of a control plane's keys and data in the metadata of its management namespace.

The namespace stays if the control plane is deleted and its data are retained. The record then names the token with
which a new control plane takes the data over.
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
"""Pod security labels of management namespaces. The pods of kplane need no more than `restricted`, and no other pods
belong there.

The pinned version is the version that these pods are tested with. An upgrade of the management cluster could otherwise
refuse them.
"""

_TOKEN_BYTES: Final = 24


def is_managed(control_plane: ControlPlane) -> bool:
    """Return whether kplane runs the API server, so that keys and data in its care outlive the control plane."""
    return control_plane.spec.endpoint_ref is None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedDataRecord:
    """The owner and the home of the keys and data for which a management namespace stands."""

    namespace: str
    name: str
    """Name of the control plane, as a label value."""
    uid: str
    """Uid of the control plane that created the data or took them over last. It may be deleted by now."""
    mode: str
    cluster_path: str | None
    """The path of the data in the shared etcd; None for mode Dedicated."""
    created: datetime
    slot: int = 0
    """Slot of the home."""
    volume: Volume | None = None
    """Volume of the home."""
    data_store: str | None = None
    """Data store of the home."""
    data_identity: str | None = None
    """Identity of the data of a deleted control plane; None if it was not recorded."""
    service_cidr: str = DEFAULT_SERVICE_CIDR
    adoption_token: str | None = field(default=None, repr=False)
    """Token that a control plane must present to take the data over; None while the owner lives."""

    @classmethod
    def of(cls, namespace: Object) -> Self | None:
        """Read the record of a namespace. Returns None if the namespace has no record or lacks the label."""
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
        """The home of the data; None if the annotations do not describe a valid home."""
        try:
            return Home.model_validate(
                {"mode": self.mode, "slot": self.slot, "volume": self.volume, "dataStore": self.data_store}
            )
        except ValidationError:
            return None

    def is_of(self, control_plane: ControlPlane) -> bool:
        """Return whether the keys and data belong to this control plane, and not to an earlier one of the same name."""
        return self.uid == control_plane.metadata.uid


def owned_metadata(control_plane: ControlPlane) -> dict[str, Any]:
    """Return the merge patch of metadata that makes a namespace the record of a living control plane."""
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
    """Return the merge patch of metadata that makes a namespace the record of a deleted control plane.

    An existing adoption token is kept. `home` is the control plane with its home, if the home is known.
    """
    return {
        "labels": {RETAINED_LABEL: "true", **POD_SECURITY},
        "annotations": {
            UID_ANNOTATION: None,
            RETAINED_UID_ANNOTATION: record.uid,
            # The uid cannot be the token: lists of control planes, Events and registrations show it.
            ADOPTION_TOKEN_ANNOTATION: record.adoption_token or secrets.token_urlsafe(_TOKEN_BYTES),
            **(_home_annotations(home) if home is not None else {}),
            **({DATA_IDENTITY_ANNOTATION: home.status.data_identity} if home is not None else {}),
        },
    }


def check_adoption(control_plane: ControlPlane, *, record: RetainedDataRecord) -> None:
    """Raise ConditionError (DataRetained) unless the control plane may take over the data of its predecessor.

    The messages never contain the token. Only a user who may read the namespace is allowed to know it.
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
