"""Claims of adopted clusters: each cluster belongs to a single control plane, under any address.

The record is `status.clusterUID`. The operator writes the record before its first write into the cluster, and compares
the record before each later write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from kplane.api import ControlPlane
from kplane.api.conditions import MANAGED
from kplane.api.reasons import Reason
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.cache import Object
from kplane.controlplane_operator.watch.conditions import stored_condition
from kplane.controlplane_operator.watch.stores import Stores, field_of

__all__ = ["ClusterClaims", "ClusterHolder"]


@dataclass(frozen=True, slots=True)
class ClusterHolder:
    """Control plane to which a cluster belongs."""

    name: str
    is_managed: bool
    """Whether kplane runs the API server."""
    order: tuple[bool, bool, datetime, str]
    """Sort key: the cluster belongs to the control plane with the least key.

    Control planes that kplane runs come first, then those with a recorded cluster uid, then older ones.
    """


class ClusterClaims:
    """Grants each cluster to one adopted control plane at a time, and never a cluster that kplane runs.

    A grant stays in memory until the status of its control plane is written. So no second control plane gets the
    cluster in between.
    """

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._granted: dict[str, str] = {}

    def take(self, control_plane: ControlPlane, *, cluster_uid: str, address: str) -> None:
        """Grant the cluster at `address` to an adopted control plane.

        Raises ConditionError: ClusterChanged if the control plane has adopted another cluster, EndpointInUse if the
        cluster belongs to another control plane. Never waits.
        """
        adopted_uid = control_plane.status.cluster_uid
        if adopted_uid not in (None, cluster_uid):
            raise ConditionError(
                Reason.CLUSTER_CHANGED,
                f"failed to use the API server at {address}: its cluster has uid {cluster_uid}, and the adopted cluster"
                f" has {adopted_uid}; nothing was written there; correct the endpoint or its Secret, or create another"
                " control plane for that cluster",
            )
        holder = self.holder(control_plane, cluster_uid=cluster_uid)
        if holder is not None and holder.is_managed:
            raise ConditionError(
                Reason.ENDPOINT_IN_USE,
                f"failed to adopt the API server at {address}: kplane runs it for control plane {holder.name}; use that"
                " control plane, or correct the endpoint",
            )
        if holder is not None:
            raise ConditionError(
                Reason.ENDPOINT_IN_USE,
                f"failed to adopt the API server at {address}: control plane {holder.name} has adopted this cluster"
                f" (uid {cluster_uid}) already; use that control plane, or delete one of the two",
            )
        self._granted[control_plane.metadata.uid or ""] = cluster_uid

    def holder(self, control_plane: ControlPlane, *, cluster_uid: str) -> ClusterHolder | None:
        """Return the other control plane to which the cluster belongs; None if there is none."""
        uid = control_plane.metadata.uid or ""
        recorded = cluster_uid in (control_plane.status.cluster_uid, self._granted.get(uid))
        created = control_plane.metadata.creation_timestamp or datetime.max.replace(tzinfo=UTC)
        own = (True, not recorded, created, uid)
        first = min(self._others(uid, cluster_uid=cluster_uid), key=lambda other: other.order, default=None)
        return first if first is not None and first.order < own else None

    def release(self, uid: str) -> None:
        """Remove the grant of a control plane that is gone."""
        self._granted.pop(uid, None)

    def _others(self, uid: str, *, cluster_uid: str) -> Iterator[ClusterHolder]:
        stores = self._stores.control_planes
        objects = [*stores.by("cluster", cluster_uid)]
        for granted_to, granted in self._granted.items():
            objects += stores.by("uid", granted_to) if granted == cluster_uid else []
        return (_holder(obj) for obj in objects if obj["metadata"]["uid"] != uid)


def _holder(obj: Object) -> ClusterHolder:
    metadata = obj["metadata"]
    managed = stored_condition(obj, MANAGED).get("status") != "False" and not field_of("spec", "endpointRef", "name")(
        obj
    )
    created = datetime.fromisoformat(metadata["creationTimestamp"])
    return ClusterHolder(metadata["name"], managed, (not managed, False, created, metadata["uid"]))
