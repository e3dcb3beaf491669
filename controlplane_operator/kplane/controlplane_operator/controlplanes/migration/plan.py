"""Plan of a migration: its size, its duration and its blockers. Planning changes no data."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final

from kplane.api import (
    ControlPlane,
    ControlPlaneClass,
    ControlPlaneMode,
    EndpointPolicy,
    EndpointType,
    Home,
    MigrationBlocker,
    MigrationPlan,
    MigrationStep,
    find_condition,
)
from kplane.api.conditions import UP_TO_DATE
from kplane.api.reasons import Reason
from kplane.components.etcd import DEFAULT_QUOTA_BYTES, quota_of
from kplane.controlplane_operator.backends.base import Movable, data_errors
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.gateway import endpoint_policy
from kplane.controlplane_operator.hibernation.decision import is_rotated
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.data import MAX_REQUEST_BYTES, Usage, estimate
from kplane.data.follow import Place
from kplane.data.revision import MOST_RAISED, raised_bytes
from kplane.data.room import COPIED_SHARE, Room, room_in

__all__ = ["REVISIONS_BETWEEN", "Planner"]

REVISIONS_BETWEEN: Final = 5_000
"""Number of revisions by which the target begins above the source. Writes in the source during the move must not
catch up. In a shared etcd, each raised revision costs a write."""
_ALWAYS_ACCEPTED: Final = 1 << 20
"""Size of an object that every etcd accepts. The default limit of a request is 1.5 MiB."""
_CONDITIONS_BYTES: Final = 1 << 10
"""Bytes of a request for the conditions of a copy, at most."""
_MEASURED_SECONDS: Final = 3.0
"""Maximum time for measuring the data. The plan estimates the rest."""
_FIXED_SECONDS: Final = 15
"""Time for the start of an etcd and an API server and for the end of controllers."""
_KEYS_A_SECOND: Final = 5_000
_FIXED_HOLD_MILLISECONDS: Final = 700
"""Time for the gateway's confirmation, the fence and the new address."""
_KEYS_COMPARED_A_MILLISECOND: Final = 250


class Planner:
    """Plans the migrations of control planes."""

    def __init__(
        self,
        context: OperatorContext,
        *,
        homes: Callable[[ControlPlane], Movable],
        check_target: Callable[[ControlPlane], object],
        quota_bytes: int,
    ) -> None:
        """`homes` returns the provisioner of a home. `check_target` raises ConditionError if a target is not available.

        A target is not available if its shared etcd does not exist, or if another control plane holds its path.
        `quota_bytes` is the quota of an etcd of mode Dedicated on a volume of the usual size.
        """
        self._context = context
        self._quota_bytes = quota_bytes
        self._homes = homes
        self._check_target = check_target

    async def plan(
        self, control_plane: ControlPlane, *, target: Home, chosen: ControlPlaneClass | None
    ) -> MigrationPlan:
        """Measure the data and return the plan with all blockers. Raises ConditionError if etcd does not answer."""
        async with self._homes(control_plane).connect(control_plane) as source:
            with data_errors():
                size_estimate = await estimate(source.client, source.prefix, seconds=_MEASURED_SECONDS)
            blockers = [
                blocker
                async for blocker in self._blockers(
                    control_plane, target=target, chosen=chosen, size=size_estimate.bytes
                )
            ]
            if target.mode is ControlPlaneMode.VIRTUAL and not blockers:
                blockers += [
                    blocker
                    async for blocker in self._shared_etcd(control_plane, source, target=target, size=size_estimate)
                ]
        seconds = _FIXED_SECONDS + size_estimate.keys // _KEYS_A_SECOND
        hold = _FIXED_HOLD_MILLISECONDS + size_estimate.keys // _KEYS_COMPARED_A_MILLISECOND
        return MigrationPlan(
            keys=size_estimate.keys,
            bytes=size_estimate.bytes,
            seconds=seconds,
            hold_milliseconds=hold,
            blockers=blockers,
        )

    async def _blockers(
        self, control_plane: ControlPlane, *, target: Home, chosen: ControlPlaneClass | None, size: int
    ) -> AsyncIterator[MigrationBlocker]:
        if (message := self._addresses(control_plane, target=target, chosen=chosen)) is not None:
            yield MigrationBlocker(reason="ClientsOnOwnAddress", message=message)
        if is_rotated(control_plane):
            message = "its keys are exchanged, see status.rotation: wait until that is done"
            yield MigrationBlocker(reason="RotationUnderWay", message=message)
        version = find_condition(control_plane.status.conditions, UP_TO_DATE)
        if version is not None and version.status == "False":
            yield MigrationBlocker(reason="VersionDiffers", message=f"condition UpToDate is False: {version.message}")
        allowed = chosen.spec.modes_allowed if chosen is not None else []
        if chosen is not None and allowed and target.mode not in allowed:
            message = (
                f"ControlPlaneClass {chosen.name} allows {' and '.join(allowed)}: name one that allows {target.mode}"
            )
            yield MigrationBlocker(reason=str(Reason.MODE_NOT_ALLOWED), message=message)
        if target.mode is not ControlPlaneMode.VIRTUAL:
            if (blocker := self._own_etcd(control_plane, target=target, size=size)) is not None:
                yield blocker
            return
        try:
            self._check_target(control_plane.at(target))
        except ConditionError as taken:
            yield MigrationBlocker(reason=str(taken.reason), message=taken.message)
        quota = chosen.spec.storage_quota_bytes if chosen is not None else None
        if quota is not None and size > quota:
            message = (
                f"it has {size} bytes, and its class allows {quota} in the shared etcd: raise"
                " spec.virtual.storage.quota of the class, or delete objects"
            )
            yield MigrationBlocker(reason="StorageQuota", message=message)

    def _own_etcd(self, control_plane: ControlPlane, *, target: Home, size: int) -> MigrationBlocker | None:
        """Return a blocker if the dedicated etcd of the target would be too small.

        The plan does not create that etcd.
        """
        quota = quota_of(target, usual=self._quota_bytes)
        # If the etcd has the data already, the copy measures its free space. A plan starts no etcd for that.
        if _returns(control_plane, target) or Room(used=0, quota=quota).has(size):
            return None
        message = (
            f"it has {size} bytes, and the etcd of its own has a quota of {quota}: a copy may fill"
            f" {COPIED_SHARE:.0%} of it. Delete objects, or set a larger spec.dedicated.volume.size: the quota is three"
            f" quarters of it, and at most {DEFAULT_QUOTA_BYTES}"
        )
        return MigrationBlocker(reason="EtcdQuota", message=message)

    def _addresses(self, control_plane: ControlPlane, *, target: Home, chosen: ControlPlaneClass | None) -> str | None:
        """Return a message if an address that clients use would change; None otherwise."""
        gateway = self._context.gateway
        if gateway is None:
            return (
                "this operator has no gateway, so the address that clients use would change; install the gateway, or"
                " move by hand, with a second control plane"
            )
        published = {endpoint.type: endpoint.url for endpoint in control_plane.status.endpoints}
        policy = endpoint_policy(self._context, control_plane.at(target), chosen=chosen)
        behind = [gateway.serves(published.get(kind, "")) for kind in (EndpointType.EXTERNAL, EndpointType.JOIN)]
        if all(behind) and policy is EndpointPolicy.GATEWAY:
            return None
        return (
            "clients or nodes use the API server's own address, or a host name. No request can wait there. Set"
            " spec.endpointPolicy to Gateway and spec.endpointStyle to Path, and give them the new kubeconfig"
        )

    async def _shared_etcd(
        self, control_plane: ControlPlane, source: Place, *, target: Home, size: Usage
    ) -> AsyncIterator[MigrationBlocker]:
        there = control_plane.at(target)
        try:
            async with self._homes(there).connect(there) as place:
                with data_errors():
                    room = await room_in(place.client)
                    revision, floor = (
                        await place.client.revision(),
                        await source.client.revision() + REVISIONS_BETWEEN,
                    )
                    fits = size.largest <= _ALWAYS_ACCEPTED or await place.client.accepts(
                        f"{place.prefix}.size-of-requests".encode(), size=size.largest + _CONDITIONS_BYTES
                    )
        except ConditionError as unreachable:
            yield MigrationBlocker(reason="NoSharedEtcd", message=unreachable.message)
            return
        # The check also applies to a return to existing data: the copy writes all keys again, beside their former
        # revisions.
        raised = raised_bytes(revision=revision, above=floor)
        if not fits:
            message = (
                f"its largest object has {size.largest} bytes, and the shared etcd takes no request of that size: set"
                f" --max-request-bytes of that etcd to {MAX_REQUEST_BYTES}, or delete the object"
            )
            yield MigrationBlocker(reason="RequestTooLarge", message=message)
        if not room.has(size.bytes + raised):
            message = (
                f"it has {size.bytes} bytes, a higher revision takes {raised}, and the shared etcd uses {room.used} of"
                f" its quota of {room.quota}: a copy may fill {COPIED_SHARE:.0%} of it: a full etcd refuses the writes"
                " of all tenants. Delete objects, or raise --quota-backend-bytes of the shared etcd (etcd.quotaBytes of"
                " the chart)"
            )
            yield MigrationBlocker(reason="EtcdQuota", message=message)
        if floor - revision > MOST_RAISED:
            message = (
                f"the shared etcd is at revision {revision}, and has to be above {floor}, which takes more writes than"
                f" {MOST_RAISED} at once: wait until others have written, or restore the shared etcd with a higher"
                " revision (docs/how-to/move.md)"
            )
            yield MigrationBlocker(reason="RevisionTooFar", message=message)


def _returns(control_plane: ControlPlane, target: Home) -> bool:
    """Return whether the control plane goes back to the home that it came from, whose data are still there."""
    migration = control_plane.status.migration
    return migration is not None and migration.step is MigrationStep.RETAINING and migration.source == target
