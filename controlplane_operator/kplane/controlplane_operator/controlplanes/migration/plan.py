"""What a migration takes, and what stands in its way. Nothing is changed to find that out."""

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
from kplane.data import estimate
from kplane.data.follow import Place
from kplane.data.revision import MOST_RAISED
from kplane.data.room import COPIED_SHARE, Room, room_in

__all__ = ["REVISIONS_BETWEEN", "Planner"]

REVISIONS_BETWEEN: Final = 5_000
"""So far above the source the target begins: what others write in a shared etcd meanwhile must not catch up. Where
revisions are raised, each is a write.
"""
_MEASURED_SECONDS: Final = 3.0
"""So long the data are measured. Of more than that, the plan has an estimate."""
_FIXED_SECONDS: Final = 15
"""For an etcd, an API server and the end of controllers."""
_KEYS_A_SECOND: Final = 5_000
_FIXED_HOLD_MILLISECONDS: Final = 700
"""For the gateway's confirmation, the fence and the new address."""
_KEYS_COMPARED_A_MILLISECOND: Final = 250


class Planner:
    """Looks at control planes that are to move."""

    def __init__(
        self,
        context: OperatorContext,
        *,
        homes: Callable[[ControlPlane], Movable],
        check_target: Callable[[ControlPlane], object],
        quota_bytes: int,
    ) -> None:
        """`homes` returns the way to the API server of a home. `check_target` raises ConditionError if the shared
        etcd of a target does not exist, or its path is another's.

        `quota_bytes` is the quota of an etcd of mode Dedicated on a volume of the usual size.
        """
        self._context = context
        self._quota_bytes = quota_bytes
        self._homes = homes
        self._check_target = check_target

    async def plan(
        self, control_plane: ControlPlane, *, target: Home, chosen: ControlPlaneClass | None
    ) -> MigrationPlan:
        """Measure the data, and name all that stands in the way. Raises ConditionError if etcd cannot be asked."""
        async with self._homes(control_plane).connect(control_plane) as source:
            with data_errors():
                found = await estimate(source.client, source.prefix, seconds=_MEASURED_SECONDS)
            blockers = [
                each async for each in self._blockers(control_plane, target=target, chosen=chosen, size=found.bytes)
            ]
            if target.mode is ControlPlaneMode.VIRTUAL and not blockers:
                blockers += [
                    each async for each in self._shared_etcd(control_plane, source, target=target, size=found.bytes)
                ]
        seconds = _FIXED_SECONDS + found.keys // _KEYS_A_SECOND
        hold = _FIXED_HOLD_MILLISECONDS + found.keys // _KEYS_COMPARED_A_MILLISECOND
        return MigrationPlan(
            keys=found.keys, bytes=found.bytes, seconds=seconds, hold_milliseconds=hold, blockers=blockers
        )

    async def _blockers(
        self, control_plane: ControlPlane, *, target: Home, chosen: ControlPlaneClass | None, size: int
    ) -> AsyncIterator[MigrationBlocker]:
        if (said := self._addresses(control_plane, target=target, chosen=chosen)) is not None:
            yield MigrationBlocker(reason="ClientsOnOwnAddress", message=said)
        if is_rotated(control_plane):
            said = "its keys are exchanged, see status.rotation: wait until that is done"
            yield MigrationBlocker(reason="RotationUnderWay", message=said)
        version = find_condition(control_plane.status.conditions, UP_TO_DATE)
        if version is not None and version.status == "False":
            yield MigrationBlocker(reason="VersionDiffers", message=f"condition UpToDate is False: {version.message}")
        allowed = chosen.spec.modes_allowed if chosen is not None else []
        if chosen is not None and allowed and target.mode not in allowed:
            said = f"ControlPlaneClass {chosen.name} allows {' and '.join(allowed)}: name one that allows {target.mode}"
            yield MigrationBlocker(reason=str(Reason.MODE_NOT_ALLOWED), message=said)
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
            said = (
                f"it has {size} bytes, and its class allows {quota} in the shared etcd: raise"
                " spec.virtual.storage.quota of the class, or delete objects"
            )
            yield MigrationBlocker(reason="StorageQuota", message=said)

    def _own_etcd(self, control_plane: ControlPlane, *, target: Home, size: int) -> MigrationBlocker | None:
        """Say whether the etcd of the target would be too small. The plan does not make that etcd to find out."""
        quota = quota_of(target, usual=self._quota_bytes)
        # Of an etcd that has the data from before, the copy measures the room: a plan starts no etcd to ask it.
        if _returns(control_plane, target) or Room(used=0, quota=quota).has(size):
            return None
        said = (
            f"it has {size} bytes, and the etcd of its own has a quota of {quota}: a copy may fill"
            f" {COPIED_SHARE:.0%} of it. Delete objects, or set a larger spec.dedicated.volume.size: the quota is three"
            f" quarters of it, and at most {DEFAULT_QUOTA_BYTES}"
        )
        return MigrationBlocker(reason="EtcdQuota", message=said)

    def _addresses(self, control_plane: ControlPlane, *, target: Home, chosen: ControlPlaneClass | None) -> str | None:
        """Say which address would change under its users; None if none would."""
        gateway = self._context.gateway
        if gateway is None:
            return (
                "this operator has no gateway, so the address that clients use would change; install the gateway, or"
                " move by hand, with a second control plane"
            )
        published = {each.type: each.url for each in control_plane.status.endpoints}
        policy = endpoint_policy(self._context, control_plane.at(target), chosen=chosen)
        behind = [gateway.serves(published.get(kind, "")) for kind in (EndpointType.EXTERNAL, EndpointType.JOIN)]
        if all(behind) and policy is EndpointPolicy.GATEWAY:
            return None
        return (
            "clients or nodes use the API server's own address, or a host name. No request can wait there. Set"
            " spec.endpointPolicy to Gateway and spec.endpointStyle to Path, and give them the new kubeconfig"
        )

    async def _shared_etcd(
        self, control_plane: ControlPlane, source: Place, *, target: Home, size: int
    ) -> AsyncIterator[MigrationBlocker]:
        there = control_plane.at(target)
        try:
            async with self._homes(there).connect(there) as place:
                with data_errors():
                    room = await room_in(place.client)
                    here, wanted = await place.client.revision(), await source.client.revision() + REVISIONS_BETWEEN
        except ConditionError as unreachable:
            yield MigrationBlocker(reason="NoSharedEtcd", message=unreachable.message)
            return
        # Also where it returns to data that are there: it writes all of them anew, beside their former revisions.
        if not room.has(size):
            said = (
                f"it has {size} bytes, and the shared etcd uses {room.used} of its quota of {room.quota}: a copy may"
                f" fill {COPIED_SHARE:.0%} of it: a full etcd refuses the writes of all tenants. Delete objects,"
                " or raise --quota-backend-bytes of the shared etcd (etcd.quotaBytes of the chart)"
            )
            yield MigrationBlocker(reason="EtcdQuota", message=said)
        if wanted - here > MOST_RAISED:
            said = (
                f"the shared etcd is at revision {here}, and has to be above {wanted}, which takes more writes than"
                f" {MOST_RAISED} at once: wait until others have written, or restore the shared etcd with a higher"
                " revision (docs/how-to/move.md)"
            )
            yield MigrationBlocker(reason="RevisionTooFar", message=said)


def _returns(control_plane: ControlPlane, target: Home) -> bool:
    """Tell whether the control plane goes back to the home that it came from, whose data are still there."""
    migration = control_plane.status.migration
    return migration is not None and migration.step is MigrationStep.RETAINING and migration.source == target
