"""Who has which place: a clusterPath of the shared etcd, or the address of an API server that kplane does not run."""

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


class AddressClaims:
    """Grants each place to one control plane at a time.

    What was granted is in the status of the control plane; until that is seen in the cache, it is remembered here. One
    that moves has two places, until it is published at the next one. Before its first status, the management namespace
    says what was granted. Data that a deleted control plane left are held by the record of them there.
    """

    def __init__(self, stores: Stores, *, address: Callable[[ControlPlane], str | None]) -> None:
        """`place` names what a control plane is to have for itself, as its spec and its endpoint say now."""
        self._stores = stores
        self._address = address
        self._granted: dict[str, str] = {}

    def take(self, control_plane: ControlPlane) -> str | None:
        """Grant a control plane its place; returns the address to write down before anything is made there.

        Raises ConditionError where another one has the better right: ClusterPathInUse or EndpointInUse, or DataRetained
        where it is gone. Never waits, so that no other control plane can be granted the place in between.
        """
        address = self._address(control_plane)
        if address is None:
            return control_plane.status.claimed_address
        if (claim := self._checked(control_plane, address=address)) is not None:
            self._granted[claim.uid] = address
        return None if is_etcd_address(address) else address

    def check(self, control_plane: ControlPlane) -> None:
        """Raise as `take` does, and grant nothing."""
        if (address := self._address(control_plane)) is not None:
            self._checked(control_plane, address=address)

    def _checked(self, control_plane: ControlPlane, *, address: str) -> Claim | None:
        claim = self._claim(control_plane, address=address)
        if claim is not None:
            check_unclaimed(claim, others=self._others(control_plane, address=address))
        return claim

    def confirm(self, control_plane: ControlPlane, *, provision: Provision) -> None:
        """Raise ConditionError (Provisioning) unless the API server is what was granted: an endpoint is edited at any
        time."""
        if provision.authorities is not None:
            return
        if self._granted.get(control_plane.metadata.uid or "") != normalized_address(provision.addresses.internal):
            raise ConditionError(Reason.PROVISIONING, "the endpoint was edited a moment ago; it is looked at again")

    def release(self, uid: str) -> None:
        """The control plane with this uid is gone."""
        self._granted.pop(uid, None)

    def holds(self, control_plane: ControlPlane) -> bool:
        """Tell whether what was made for the control plane is at a place of its own; true where none is shared."""
        wanted, uid = self._address(control_plane), control_plane.metadata.uid or ""
        obj = self._stores.control_planes.get(("", control_plane.name))
        held = held_addresses(obj) if obj is not None and obj["metadata"]["uid"] == uid else []
        places = dict.fromkeys(address for address in (*held, self._granted.get(uid)) if address is not None)
        if not places:
            return wanted is None
        return not any(self._is_anothers(control_plane, address=address) for address in places)

    def _is_anothers(self, control_plane: ControlPlane, *, address: str) -> bool:
        claim = self._claim(control_plane, address=address)
        others = self._others(control_plane, address=address)
        return claim is None or any(other.goes_before(claim) for other in others)

    def _others(self, control_plane: ControlPlane, *, address: str) -> list[Claim]:
        """Return the claims of all others that have the place or want it."""
        stores = self._stores.control_planes
        found = [*stores.by("address", address), *stores.by("path", _path(control_plane))]
        for endpoint in self._stores.endpoints.by("address", address):
            found += stores.by("endpoint", endpoint["metadata"]["name"])
        for namespace in self._stores.namespaces.by("address", address):
            found += stores.by("namespace", namespace["metadata"]["name"])
        for uid, granted in self._granted.items():
            found += stores.by("uid", uid) if granted == address else []
        others = {obj["metadata"]["uid"]: obj for obj in found if obj["metadata"]["uid"] != control_plane.metadata.uid}
        claims = [self._claim(as_recorded(obj), address=address) for obj in others.values()]
        kept = self._kept(control_plane) if is_etcd_address(address) else []
        return [claim for claim in claims if claim is not None] + kept

    def _kept(self, control_plane: ControlPlane) -> list[Claim]:
        """Return the claims of the data that control planes of other names left under the path."""
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
        found = self._stores.control_planes.by("namespace", record.namespace)
        return any(obj["metadata"]["uid"] == record.uid for obj in found)

    def _claim(self, control_plane: ControlPlane, *, address: str) -> Claim | None:
        """Return a control plane's claim to a place; None if it does not have it and may not want it."""
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
        """Tell whether the namespace of a control plane without a status says that the place was granted."""
        return any(uid in owner_uids(found) for found in self._stores.namespaces.by("address", address))


def _path(control_plane: ControlPlane) -> str:
    # As written down when it was granted: the spec may have been edited a moment before that.
    return control_plane.status.cluster_path or control_plane.cluster_path
