"""Who has which place: a clusterPath of the shared etcd, or the address of an API server that kplane does not run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from kplane.api import ControlPlane, ControlPlaneMode
from kplane.api.names import management_namespace
from kplane.controlplane_operator.backends.base import Provision
from kplane.controlplane_operator.controlplanes.address_claims import (
    etcd_address,
    held_addresses,
    is_etcd_address,
    normalized_address,
)
from kplane.controlplane_operator.controlplanes.partial import as_recorded
from kplane.controlplane_operator.controlplanes.record import RetainedDataRecord
from kplane.controlplane_operator.controlplanes.validation import Claim, check_unclaimed
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.reasons import Reason
from kplane.controlplane_operator.watch.event_routing import Stores

__all__ = ["AddressClaims"]


class AddressClaims:
    """Grants each place to one control plane at a time.

    What was granted is in the status of the control plane; until that is seen in the cache, it is remembered here. One
    that moves has two places, until it is published at the next one. Data that a deleted control plane left are held by
    the record of them in its management namespace.
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
        claim = self._claim(control_plane, address=address)
        if claim is not None:
            check_unclaimed(claim, others=self._others(control_plane, address=address))
            self._granted[claim.uid] = address
        return None if is_etcd_address(address) else address

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
        """Return a control plane's claim to a place; None where it neither has it nor may want it."""
        uid = control_plane.metadata.uid or ""
        holders = self._stores.control_planes.by("address", address)
        held = self._granted.get(uid) == address or any(obj["metadata"]["uid"] == uid for obj in holders)
        if not held and (control_plane.deleting or self._address(control_plane) != address):
            return None
        return Claim(
            name=control_plane.name,
            uid=uid,
            address=address,
            cluster_path=_path(control_plane) if control_plane.spec.mode is ControlPlaneMode.VIRTUAL else None,
            held=held,
            created=control_plane.metadata.creation_timestamp or datetime.max.replace(tzinfo=UTC),
        )


def _path(control_plane: ControlPlane) -> str:
    # As written down when it was granted: the spec may have been edited a moment before that.
    return control_plane.status.cluster_path or control_plane.cluster_path
