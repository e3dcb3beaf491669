"""Exclusive claims of control planes: to a path of the shared etcd, or to the address of an adopted API server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from kplane.api import (
    ControlPlane,
    ControlPlaneMode,
)
from kplane.api.addresses import normalized_address
from kplane.api.names import ADOPT_ANNOTATION, management_namespace
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.base import Provision
from kplane.controlplane_operator.controlplanes.beginning import is_recorded
from kplane.controlplane_operator.controlplanes.retained_data import RetainedDataRecord
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.partial import as_recorded
from kplane.controlplane_operator.watch.addresses import (
    etcd_address,
    held_addresses,
    is_etcd_address,
    owner_uids,
)
from kplane.controlplane_operator.watch.stores import Stores

__all__ = ["AddressClaims", "Claim", "check_unclaimed"]


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim of a control plane to an exclusive place: a path in an etcd, or an entire API server."""

    name: str
    uid: str
    address: str
    cluster_path: str | None
    """The path in the etcd; None if the claim is to an entire API server."""
    held: bool
    """Whether the place was already granted to this control plane, so that its data may be there."""
    created: datetime
    kept_by: str | None = None
    """Namespace that records the owner of the data under the path; set if the control plane itself is gone."""

    def goes_before(self, other: Claim) -> bool:
        """Return whether this claim wins over `other`: holders go first, then older control planes.

        Equal ages are decided by the lower uid.
        """
        return (not self.held, self.created, self.uid) < (not other.held, other.created, other.uid)


def check_unclaimed(claim: Claim, *, others: Iterable[Claim]) -> None:
    """Raise ConditionError if another control plane has the better claim to the place.

    The reason is ClusterPathInUse or EndpointInUse if the other control plane exists. It is DataRetained if the other
    control plane is gone and its data are left.
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
            # Claims to an address depend on endpoints, and a change of an endpoint may wake no reconcile here. So
            # retry.
            waits_for_event=is_etcd_address(claim.address),
        )


class AddressClaims:
    """Grants each place to at most one control plane at a time.

    The status of a control plane records its granted address. Grants stay in memory until the cache shows that status.
    A control plane that moves to another address holds both until the new address is published. Before the first
    status, the management namespace records the grant. Data of a deleted control plane stay claimed by the record in
    its namespace.
    """

    def __init__(self, stores: Stores, *, address: Callable[[ControlPlane], str | None]) -> None:
        """`address` returns the place that a control plane claims, by its present spec and endpoint."""
        self._stores = stores
        self._address = address
        self._granted: dict[str, str] = {}

    def take(self, control_plane: ControlPlane) -> str | None:
        """Grant a control plane its place, and return the address to record before any object is made there.

        Raises ConditionError if another control plane has the better claim: ClusterPathInUse, EndpointInUse, or
        DataRetained if that control plane is gone. The method never awaits, so no other control plane can be granted
        the place in between.
        """
        address = self._address(control_plane)
        if address is None:
            return control_plane.status.claimed_address
        if (claim := self._checked(control_plane, address=address)) is not None:
            self._granted[claim.uid] = address
        return None if is_etcd_address(address) else address

    def check(self, control_plane: ControlPlane) -> None:
        """Raise ConditionError as `take` does, but grant no place."""
        if (address := self._address(control_plane)) is not None:
            self._checked(control_plane, address=address)

    def _checked(self, control_plane: ControlPlane, *, address: str) -> Claim | None:
        claim = self._claim(control_plane, address=address)
        if claim is not None:
            check_unclaimed(claim, others=self._others(control_plane, address=address))
        return claim

    def confirm(self, control_plane: ControlPlane, *, provision: Provision) -> None:
        """Raise ConditionError (Provisioning) unless the adopted API server has the granted address.

        A user may edit the endpoint at any time.
        """
        if provision.authorities is not None:
            return
        if self._granted.get(control_plane.metadata.uid or "") != normalized_address(provision.addresses.internal):
            raise ConditionError(Reason.PROVISIONING, "the endpoint was edited a moment ago; it is looked at again")

    def release(self, uid: str) -> None:
        """Discard the grant of the deleted control plane with this uid."""
        self._granted.pop(uid, None)

    def holds(self, control_plane: ControlPlane) -> bool:
        """Return whether the control plane has an exclusive place for its objects; True if it claims no place."""
        claimed, uid = self._address(control_plane), control_plane.metadata.uid or ""
        obj = self._stores.control_planes.get(("", control_plane.name))
        held = held_addresses(obj) if obj is not None and obj["metadata"]["uid"] == uid else []
        places = dict.fromkeys(address for address in (*held, self._granted.get(uid)) if address is not None)
        if not places:
            return claimed is None
        return not any(self._is_anothers(control_plane, address=address) for address in places)

    def _is_anothers(self, control_plane: ControlPlane, *, address: str) -> bool:
        claim = self._claim(control_plane, address=address)
        others = self._others(control_plane, address=address)
        return claim is None or any(other.goes_before(claim) for other in others)

    def _others(self, control_plane: ControlPlane, *, address: str) -> list[Claim]:
        """Return the claims of all other control planes that hold the place or claim it."""
        stores = self._stores.control_planes
        candidates = [*stores.by("address", address), *stores.by("path", _path(control_plane))]
        for endpoint in self._stores.endpoints.by("address", address):
            candidates += stores.by("endpoint", endpoint["metadata"]["name"])
        for namespace in self._stores.namespaces.by("address", address):
            candidates += stores.by("namespace", namespace["metadata"]["name"])
        for uid, granted in self._granted.items():
            candidates += stores.by("uid", uid) if granted == address else []
        others = {
            obj["metadata"]["uid"]: obj for obj in candidates if obj["metadata"]["uid"] != control_plane.metadata.uid
        }
        claims = [self._claim(as_recorded(obj), address=address) for obj in others.values()]
        kept = self._kept(control_plane) if is_etcd_address(address) else []
        return [claim for claim in claims if claim is not None] + kept

    def _kept(self, control_plane: ControlPlane) -> list[Claim]:
        """Return the claims of data that deleted control planes of other names left under the path."""
        namespaces = self._stores.namespaces.by("path", _path(control_plane))
        records = [RetainedDataRecord.of(obj) for obj in namespaces if "deletionTimestamp" not in obj["metadata"]]
        return [
            Claim(
                name=record.name,
                uid=record.uid,
                address=etcd_address(record.cluster_path),
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

    def _lives(self, record: RetainedDataRecord) -> bool:
        control_planes = self._stores.control_planes.by("namespace", record.namespace)
        return any(obj["metadata"]["uid"] == record.uid for obj in control_planes)

    def _claim(self, control_plane: ControlPlane, *, address: str) -> Claim | None:
        """Return the claim of a control plane to a place; None if it does not hold the place and may not claim it."""
        uid = control_plane.metadata.uid or ""
        holders = self._stores.control_planes.by("address", address)
        held = self._granted.get(uid) == address or any(obj["metadata"]["uid"] == uid for obj in holders)
        held = held or (not is_recorded(control_plane) and self._is_begun(uid, address))
        if not held and (control_plane.deleting or self._address(control_plane) != address):
            return None
        return Claim(
            name=control_plane.name,
            uid=uid,
            address=address,
            cluster_path=_path(control_plane) if control_plane.home.mode is ControlPlaneMode.VIRTUAL else None,
            held=held,
            created=control_plane.metadata.creation_timestamp or datetime.max.replace(tzinfo=UTC),
        )

    def _is_begun(self, uid: str, address: str) -> bool:
        """Return whether the namespace of a control plane without a status records the grant of the place."""
        return any(uid in owner_uids(namespace) for namespace in self._stores.namespaces.by("address", address))


def _path(control_plane: ControlPlane) -> str:
    # The status has the path that was granted. The spec may have been edited since.
    return control_plane.status.cluster_path or control_plane.cluster_path
