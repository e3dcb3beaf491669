"""Who holds which clusterPath."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from api import ControlPlane, ControlPlaneMode
from api.names import management_namespace
from controlplane_operator.fanout import Stores
from controlplane_operator.record import Record
from controlplane_operator.validation import SHARED_ETCD, Claim, check_unclaimed

__all__ = ["Claims"]


class Claims:
    """Grants each clusterPath of a realm to one control plane at a time.

    What was granted is in the status of the control plane; until that is seen in the cache, it is remembered here. Data
    that a deleted control plane left are held by the record of them in its management namespace.
    """

    def __init__(self, stores: Stores, *, realm: Callable[[ControlPlane], str | None]) -> None:
        """`realm` names what a control plane's path must be unique in."""
        self._stores = stores
        self._realm = realm
        self._granted: dict[str, tuple[str, str]] = {}

    def take(self, control_plane: ControlPlane) -> None:
        """Grant a control plane its path.

        Raises Trouble where another one has the better right: ClusterPathInUse, or DataRetained where it is gone.
        Never waits, so that no other control plane can be granted the path in between.
        """
        claim = self._claim(control_plane)
        if claim is None:
            return
        check_unclaimed(claim, others=self._others(control_plane))
        self._granted[claim.uid] = claim.realm, claim.cluster_path

    def release(self, uid: str) -> None:
        """The control plane with this uid is gone."""
        self._granted.pop(uid, None)

    def holds(self, control_plane: ControlPlane) -> bool:
        """Tell whether what lies under the control plane's path is its own; true where there is no path to share."""
        if control_plane.spec.mode is not ControlPlaneMode.VIRTUAL or self._realm(control_plane) is None:
            return True
        claim = self._claim(control_plane)
        return claim is not None and not any(
            (other.realm, other.cluster_path) == (claim.realm, claim.cluster_path) and other.goes_before(claim)
            for other in self._others(control_plane)
        )

    def _others(self, control_plane: ControlPlane) -> list[Claim]:
        found = [
            ControlPlane.model_validate(obj) for obj in self._stores.control_planes.by("path", _path(control_plane))
        ]
        claims = [self._claim(other) for other in found if other.metadata.uid != control_plane.metadata.uid]
        return [claim for claim in claims if claim is not None] + self._kept(control_plane)

    def _kept(self, control_plane: ControlPlane) -> list[Claim]:
        """Return the claims of the data that control planes of other names left under the path."""
        namespaces = self._stores.namespaces.by("path", _path(control_plane))
        records = [Record.of(obj) for obj in namespaces if "deletionTimestamp" not in obj["metadata"]]
        return [
            Claim(
                name=record.name,
                uid=record.uid,
                realm=SHARED_ETCD,
                cluster_path=record.cluster_path,
                held=True,
                created=record.created,
                kept_by=record.namespace,
            )
            for record in records
            if record is not None
            and record.cluster_path is not None
            and record.namespace != management_namespace(control_plane.name)
            and not self._lives(record)
        ]

    def _lives(self, record: Record) -> bool:
        found = self._stores.control_planes.by("namespace", record.namespace)
        return any(obj["metadata"]["uid"] == record.uid for obj in found)

    def _claim(self, control_plane: ControlPlane) -> Claim | None:
        if control_plane.spec.mode is not ControlPlaneMode.VIRTUAL:
            return None
        realm = self._realm(control_plane)
        if realm is None:
            return None
        uid, path = control_plane.metadata.uid or "", _path(control_plane)
        held = control_plane.status.cluster_path == path or self._granted.get(uid) == (realm, path)
        if control_plane.deleting and not held:
            return None
        return Claim(
            name=control_plane.name,
            uid=uid,
            realm=realm,
            cluster_path=path,
            held=held,
            created=control_plane.metadata.creation_timestamp or datetime.max.replace(tzinfo=UTC),
        )


def _path(control_plane: ControlPlane) -> str:
    # As written down when it was granted: the spec may have been edited a moment before that.
    return control_plane.status.cluster_path or control_plane.cluster_path
