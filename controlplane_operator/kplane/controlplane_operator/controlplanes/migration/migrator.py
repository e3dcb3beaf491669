"""Migration of control planes to another home, step by step, in passes of their reconciler.

The progress is in `status.migration`, and the home of the data in `status.home`. One write of the status changes the
home. Before that write, the API server of the new home cannot write; after it, the API server of the former home
cannot.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from kplane.api import (
    ControlPlane,
    ControlPlaneClass,
    ControlPlaneMode,
    DeletionPolicy,
    Home,
    MigrationSpec,
    MigrationStatus,
    MigrationStep,
)
from kplane.api.clocks import is_future
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.base import Movable, Provision, data_errors
from kplane.controlplane_operator.backends.served_data import served_data
from kplane.controlplane_operator.class_policy import wanted_home
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.migration.cut import Cut, Cutter
from kplane.controlplane_operator.controlplanes.migration.following import Copies, Copy
from kplane.controlplane_operator.controlplanes.migration.plan import REVISIONS_BETWEEN, Planner
from kplane.controlplane_operator.controlplanes.migration.report import Report, required
from kplane.controlplane_operator.controlplanes.migration.turns import Turns
from kplane.controlplane_operator.credentials.store import TenantKeys
from kplane.controlplane_operator.registrations.consumers import instances_of, registrations_of
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.data import DataError, DataLost, RevisionTooFar, ServedData, check_served, identify, set_identity
from kplane.data.follow import open_place

__all__ = ["Migrator"]

_PROGRESS_SECONDS: Final = 1.0
_SOON_SECONDS: Final = 0.1
_BLOCKED_SECONDS: Final = 30.0
_REVISIONS_AGAIN: Final = 8 * REVISIONS_BETWEEN
"""Distance for a new home that is made again because other writers exceeded the usual distance."""
_REVISIONS_LEFT: Final = REVISIONS_BETWEEN // 2
"""Revisions reserved for writes of others in the source while writes wait, until clients read in the target."""
_CLOSE_SECONDS: Final = 1.0
"""Maximum lag of a copy in seconds at which controllers are stopped."""


class Migrator:
    """Takes the steps of migrations. Only copies and the wait before a retry are kept in memory, not in the status."""

    def __init__(
        self,
        context: OperatorContext,
        *,
        homes: Callable[[ControlPlane], Movable],
        planner: Planner,
        copies: Copies,
        claim: Callable[[ControlPlane], object],
    ) -> None:
        """`homes` returns the provisioner of a home.

        `claim` grants a control plane its path in the shared etcd, or raises ConditionError.
        """
        self._context = context
        self._homes = homes
        self._planner = planner
        self._copies = copies
        self._claim = claim
        self._keys = TenantKeys(context)
        self._report = Report(context, copies=copies)
        self._cutter = Cutter(context, homes=homes)
        self._turns = Turns(context)
        self._retired: set[str] = set()
        """Uids of control planes in a new home whose former API server has ended."""

    async def advance(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> ControlPlane:
        """Continue the migration as far as possible now. Returns the control plane with its present home.

        Raises ConditionError if stopped writes cannot be released, and Conflict if the control plane changed meanwhile.
        """
        if control_plane.status.endpoint is None or control_plane.status.home is None:
            return control_plane
        migration = control_plane.status.migration
        if migration is not None and migration.step is MigrationStep.CUTTING:
            control_plane = await self._recover(control_plane)
        control_plane = await self._correct_cut_time(control_plane)
        target = wanted_home(control_plane, chosen=chosen)
        try:
            if migration is not None and migration.step is MigrationStep.RETAINING:
                await self._cutter.finish(control_plane, former=control_plane.at(migration.source))
            if target == control_plane.home:
                return await self._stay(control_plane)
            control_plane = await self._make_way(control_plane, target=target)
            if not _is_under_way(control_plane.status.migration):
                control_plane, begun = await self._begin(control_plane, target=target, chosen=chosen)
                if not begun:
                    return control_plane
            return await self._move(control_plane, chosen=chosen)
        except ConditionError as waits:
            # The migration is pending, but the control plane in its present home is unaffected.
            return await self._wait(self.seen(control_plane), waits.message, target=target)

    def seen(self, control_plane: ControlPlane) -> ControlPlane:
        """Return the control plane after the latest write of its migration."""
        return self._report.seen(control_plane)

    def again(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> float | None:
        """Return after how many seconds to check again; None if no timer is needed."""
        migration = control_plane.status.migration
        if migration is None:
            return None
        is_elsewhere = wanted_home(control_plane, chosen=chosen) != control_plane.home
        if migration.step is None or (migration.step.is_cut and is_elsewhere):
            return _BLOCKED_SECONDS
        if migration.step is MigrationStep.COMPLETED:
            return None
        if migration.step is MigrationStep.RETAINING and migration.cut_time is not None:
            if control_plane.metadata.uid not in self._retired:
                return _SOON_SECONDS
            left = migration.cut_time + _settings(control_plane).window - datetime.now(UTC)
            return max(_SOON_SECONDS, left.total_seconds())
        return _SOON_SECONDS if migration.step is MigrationStep.ENDING_CONTROLLERS else _PROGRESS_SECONDS

    async def abandon(self, control_plane: ControlPlane) -> None:
        """Remove the home that the control plane does not use, because the control plane is deleted."""
        migration = control_plane.status.migration
        await self.forget(control_plane.metadata.uid or "")
        if migration is None or migration.step is None or migration.step is MigrationStep.COMPLETED:
            return
        if not migration.step.is_cut:
            with contextlib.suppress(ConditionError):
                await self._cutter.resume(control_plane)
        await self._discard(control_plane, migration.source if migration.step.is_cut else migration.target)

    async def pause(self, control_plane: ControlPlane) -> ControlPlane:
        """Stop the migration of a paused control plane until `advance` is called again. Held writes are released."""
        await self.forget(control_plane.metadata.uid or "")
        migration = control_plane.status.migration
        if not _is_under_way(migration):
            return control_plane
        if required(control_plane).step is MigrationStep.CUTTING:
            # No pass ends within this step, so an operator died during the cut.
            return await self._recover(control_plane)
        # The previous pass may have recorded that writes continue, without releasing them.
        await self._cutter.resume(control_plane)
        return control_plane

    async def forget(self, uid: str) -> None:
        """Stop the copy of a control plane in this operator, and discard its state."""
        self._turns.forget(uid)
        self._retired.discard(uid)
        await self._copies.end(uid)

    async def _correct_cut_time(self, control_plane: ControlPlane) -> ControlPlane:
        """Correct a cut time in the future, which comes from a wrong clock, to now.

        Otherwise the former home would be kept until then.
        """
        migration = control_plane.status.migration
        if migration is None or migration.step is not MigrationStep.RETAINING or migration.cut_time is None:
            return control_plane
        now = datetime.now(UTC)
        if not is_future(migration.cut_time, now=now):
            return control_plane
        return await self._report.retain(control_plane, migration.model_copy(update={"cut_time": now}))

    async def _stay(self, control_plane: ControlPlane) -> ControlPlane:
        """Keep the control plane in the home that its spec asks for: abort an unfinished migration, or complete it."""
        migration = control_plane.status.migration
        if migration is None or migration.step is MigrationStep.COMPLETED:
            return control_plane
        if migration.step is None:
            return await self._report.write(
                control_plane, None, status="False", reason=Reason.MIGRATION_ABORTED, told=""
            )
        if not migration.step.is_cut:
            return await self._abort(control_plane, why="because the spec was set back")
        await self._copies.end(control_plane.metadata.uid or "")
        former = control_plane.at(migration.source)
        if not await self._cutter.is_over(control_plane):
            # Clients may still read in the former home. If an operator died between the change of the home and the
            # release, the rest of this pass completes the release.
            if not await self._cutter.is_followed(control_plane):
                await self._retire(former)
            return control_plane
        if migration.cut_time is not None and datetime.now(UTC) < migration.cut_time + _settings(control_plane).window:
            await self._retire(former)
            return control_plane
        await self._discard(control_plane, migration.source)
        message = f"of the former home, {migration.source}, nothing is left"
        self._context.events.record(control_plane, reason="MigrationCompleted", message=message)
        completed = migration.model_copy(
            update={"step": MigrationStep.COMPLETED, "completed_time": datetime.now(UTC), "message": None}
        )
        return await self._report.write(control_plane, completed, status="False", reason=Reason.MIGRATED, told=message)

    async def _make_way(self, control_plane: ControlPlane, *, target: Home) -> ControlPlane:
        """Finish an earlier migration whose other home has the names that the new home needs.

        Raises ConditionError while that other home keeps its data for a way back.
        """
        migration = control_plane.status.migration
        if migration is None or migration.step is None or migration.step is MigrationStep.COMPLETED:
            return control_plane
        if not migration.step.is_cut:
            if migration.target == target:
                return control_plane
            return await self._abort(control_plane, why=f"until it goes to {target}")
        if migration.source == target:
            return control_plane
        control_plane = await self._stay(control_plane)
        if required(control_plane).step is MigrationStep.COMPLETED:
            return control_plane
        message = (
            f"moves to {target} when the former home, {migration.source}, is gone, which keeps data for a way back"
        )
        remedy = "to go back there, ask for its mode, volume and data store; to continue, wait for the rollback window"
        raise ConditionError(Reason.MIGRATING, f"{message}: {remedy}")

    async def _abort(self, control_plane: ControlPlane, *, why: str) -> ControlPlane:
        """Abort the migration and delete the new home."""
        await self.forget(control_plane.metadata.uid or "")
        await self._cutter.resume(control_plane)
        message = f"it stays {control_plane.home}, {why}"
        # If the operator dies now and the spec changes back, step Preparing gives the new home its revision again.
        control_plane = await self._report.step(control_plane, MigrationStep.PREPARING, message)
        await self._discard(control_plane, required(control_plane).target)
        self._context.events.record(control_plane, reason="MigrationAborted", message=message)
        return await self._report.write(
            control_plane, None, status="False", reason=Reason.MIGRATION_ABORTED, told=message
        )

    async def _begin(
        self, control_plane: ControlPlane, *, target: Home, chosen: ControlPlaneClass | None
    ) -> tuple[ControlPlane, bool]:
        """Plan the migration, and record its start before any object is made. Returns also whether it started.

        Raises ConditionError while the maximum number of other control planes is in migration.
        """
        migration = control_plane.status.migration
        returns = migration is not None and migration.step is MigrationStep.RETAINING and migration.source == target
        in_turn = not returns and not _settings(control_plane).plan
        with self._turns.beginning(control_plane) if in_turn else contextlib.nullcontext():
            return await self._begin_now(control_plane, target=target, chosen=chosen, returns=returns)

    async def _begin_now(
        self, control_plane: ControlPlane, *, target: Home, chosen: ControlPlaneClass | None, returns: bool
    ) -> tuple[ControlPlane, bool]:
        home = control_plane.home
        plan = await self._planner.plan(control_plane, target=target, chosen=chosen)
        if plan.blockers or _settings(control_plane).plan:
            return await self._report.plan(control_plane, plan, target=target), False
        await self._check_data(control_plane)
        migration = MigrationStatus(
            source=home,
            target=target,
            step=MigrationStep.PREPARING,
            started_time=datetime.now(UTC),
            begins_at=await self._revision(control_plane) + REVISIONS_BETWEEN,
            returns=returns,
            plan=plan,
        )
        message = f"its data move from {home} to {target}: {plan.keys} keys, {plan.bytes} bytes"
        self._context.events.record(control_plane, reason="MigrationStarted", message=message)
        fields: dict[str, Any] = {}
        if target.mode is ControlPlaneMode.VIRTUAL:
            self._claim(control_plane.at(target))
            fields["cluster_path"] = control_plane.cluster_path
        return await self._report.write(control_plane, migration, told=message, **fields), True

    async def _move(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> ControlPlane:
        """Take the steps up to the change of the home, as far as possible.

        Raises ConditionError with the pending step.
        """
        migration = required(control_plane)
        in_target = control_plane.at(migration.target)
        home = self._homes(in_target)
        if migration.step is MigrationStep.PREPARING:
            if migration.returns:
                await self._end_returning(control_plane)
            try:
                await home.prepare_home(in_target, begins_at=migration.begins_at, new=not migration.returns)
            except RevisionTooFar:
                # The old data in that home are not needed, and a new home can begin at any revision.
                message = "the new home is made again, because its revision is too far below"
                return await self._make_again(control_plane, message)
            control_plane = await self._report.step(control_plane, MigrationStep.COPYING, "the data are copied")
        control_plane = await self._keep_margin(control_plane)
        copy = await self._copy(control_plane)
        if not copy.complete:
            raise _waiting(copy.problem or "the data are copied")
        if required(control_plane).step is MigrationStep.COPYING:
            control_plane = await self._report.step(control_plane, MigrationStep.STARTING, "the API server starts")
        provision = await home.ensure(in_target, writes=False)
        self._turns.check_next_try(control_plane)
        if copy.lag_seconds > _CLOSE_SECONDS:
            raise _waiting("the copy catches up")
        if required(control_plane).step is MigrationStep.STARTING:
            control_plane = await self._report.step(control_plane, MigrationStep.ENDING_CONTROLLERS, "controllers end")
        if working := self._working(control_plane):
            raise _waiting(f"waiting until instances have ended, of {', '.join(working)}")
        return await self._cut(control_plane, copy, provision=provision, chosen=chosen)

    async def _end_returning(self, control_plane: ControlPlane) -> None:
        """Stop the API server of a former home that becomes the target again.

        Its cache holds lists of revisions that the present home also has. A later API server begins above them. Raises
        ConditionError while gateways route to the former home.
        """
        if not await self._cutter.is_over(control_plane):
            raise _waiting("waiting until no gateway leads to the former home")
        in_target = control_plane.at(required(control_plane).target)
        await self._homes(in_target).retire(in_target)

    async def _wait(self, control_plane: ControlPlane, why: str, *, target: Home) -> ControlPlane:
        """Report the obstacle of a step. Idle controllers continue after a while, until the next attempt."""
        migration = control_plane.status.migration
        ends = migration is not None and migration.step is MigrationStep.ENDING_CONTROLLERS
        if not ends or not self._turns.is_ending_for_long(control_plane):
            return await self._report.say(control_plane, why, target=target)
        self._turns.put_off(control_plane, why)
        return await self._report.step(control_plane, MigrationStep.STARTING, why)

    async def _cut(
        self, control_plane: ControlPlane, copy: Copy, *, provision: Provision, chosen: ControlPlaneClass | None
    ) -> ControlPlane:
        """Change the home. If that fails, raises ConditionError, and the control plane is as before."""
        migration, follower = required(control_plane), copy.follower
        if follower is None or not copy.complete:
            raise _waiting(copy.problem or "the data are copied")
        await self._complete_home(control_plane)
        control_plane = await self._report.step(
            control_plane, MigrationStep.CUTTING, "writes wait", attempts=migration.attempts + 1
        )
        seconds = _settings(control_plane).hold.total_seconds()
        try:
            cut = await self._cutter.stop_writes(control_plane, follower, seconds=seconds)
            if await self._revision(control_plane) + _REVISIONS_LEFT // 2 >= (migration.begins_at or 0):
                raise _waiting("others wrote so much meanwhile that the new home has to be raised")
        except ConditionError as failure:
            self._turns.put_off(control_plane, failure.message)
            await self._recover(control_plane)
            raise
        control_plane = await self._report.commit(control_plane, endpoint=provision.addresses.internal)
        former = control_plane.at(migration.source)
        followed = await self._cutter.release(control_plane, former=former, provision=provision, chosen=chosen)
        held_seconds = time.monotonic() - cut.began
        if not followed:
            # Its API server may need longer to end than this call waits. A later pass repeats the call.
            with contextlib.suppress(ConditionError):
                await self._retire(former)
        return await self._arrive(control_plane, cut, held_seconds=held_seconds)

    async def _retire(self, former: ControlPlane) -> None:
        """Stop the API server of the former home, and keep its data for a rollback.

        Raises ConditionError until the API server has ended.
        """
        await self._homes(former).retire(former)
        self._retired.add(former.metadata.uid or "")

    async def _complete_home(self, control_plane: ControlPlane) -> None:
        """Give the new home the identity of the data, and compact its history up to `begins_at`.

        `begins_at` exceeds each revision of the former home. A `continue` token or an `Exact` list of the former home
        names a revision at which the new home was incomplete. Such a request gets 410 Expired instead of a part of the
        list. The call may be repeated. Raises ConditionError if etcd does not answer or the data are lost.
        """
        in_target, begins_at = control_plane.at(required(control_plane).target), required(control_plane).begins_at
        if begins_at is None:
            raise _waiting("the status does not name the revision at which the new home begins")
        async with self._homes(control_plane).connect(control_plane) as place:
            with data_errors():
                identity = await identify(
                    place.client,
                    place.prefix,
                    served=ServedData(control_plane.status.data_identity, control_plane.status.cluster_uid),
                    only_if=place.only_if,
                )
        async with self._homes(in_target).connect(in_target) as place:
            with data_errors():
                await set_identity(place.client, place.prefix, identity, only_if=place.only_if)
                await place.client.compact(begins_at)

    async def _arrive(self, control_plane: ControlPlane, cut: Cut, *, held_seconds: float) -> ControlPlane:
        """Record the result of the cut: duration and digest."""
        await self.forget(control_plane.metadata.uid or "")
        migration = required(control_plane)
        message = f"it lives in its new home, {migration.target}; writes waited {held_seconds * 1000:.0f} ms"
        self._context.events.record(control_plane, reason="MigrationCut", message=message)
        self._context.metrics.migrated(held_seconds)
        measured = migration.model_copy(
            update={"hold_milliseconds": round(held_seconds * 1000), "sha256": cut.comparison.source.sha256}
        )
        # A later pass stops the former API server, once no gateway routes to it.
        reason = Reason.RETAINING_FORMER_HOME
        return await self._report.write(control_plane, measured, status="False", reason=reason, told=message)

    async def _recover(self, control_plane: ControlPlane) -> ControlPlane:
        """Return to the state before writes were stopped, and release them.

        The status is written first, because the write that changes the home is compared with it. The copy starts again,
        because it may be closed.
        """
        await self._copies.end(control_plane.metadata.uid or "")
        control_plane = await self._report.step(control_plane, MigrationStep.STARTING, "it is tried again")
        await self._cutter.resume(control_plane)
        return control_plane

    async def _keep_margin(self, control_plane: ControlPlane) -> ControlPlane:
        """Keep the revisions of the new home above the revisions of the former home.

        The latter grow with each write.

        Otherwise clients would take versions of the former home for newer ones. Raises ConditionError while the new
        home does not run, and if it has to be made again.
        """
        migration = required(control_plane)
        in_target, begins_at = control_plane.at(migration.target), migration.begins_at or 0
        home, revision = self._homes(in_target), await self._revision(control_plane)
        raised = None
        if revision < begins_at <= revision + _REVISIONS_LEFT:
            raised = revision + REVISIONS_BETWEEN
        # The first call after `begins_at` was applied restarts etcd without the option that raises its revision.
        await home.prepare_home(in_target, begins_at=raised, new=False)
        if raised is not None:
            # The API server caches lists at revisions that the former home has now reached. A new process begins above
            # them.
            await home.retire(in_target)
            revision = await self._revision(control_plane)
        if revision >= begins_at:
            # Keys copied before may have lower revisions than in the former home, so all data are copied again.
            message = "the former home has reached the revisions of the new one, which is made again"
            await self._make_again(control_plane, message, begins_at=revision + _REVISIONS_AGAIN)
            raise _waiting(message)
        if raised is None:
            return control_plane
        message = f"the new home is raised to revision {raised}"
        raised_migration = migration.model_copy(update={"begins_at": raised, "message": message})
        return await self._report.write(control_plane, raised_migration, told=message)

    async def _make_again(self, control_plane: ControlPlane, told: str, **update: Any) -> ControlPlane:
        """Delete the new home, and return to its preparation."""
        await self._copies.end(control_plane.metadata.uid or "")
        await self._discard(control_plane, required(control_plane).target)
        return await self._report.step(control_plane, MigrationStep.PREPARING, told, returns=False, **update)

    async def _discard(self, control_plane: ControlPlane, home: Home) -> None:
        """Delete the objects and data of a home that the control plane does not use, and no others."""
        in_home = control_plane.at(home)
        backend = self._homes(in_home)
        await backend.shut_down(in_home)
        await backend.settle(in_home, policy=DeletionPolicy.DESTROY)
        await self._keys.forget_certificates(in_home)

    async def _copy(self, control_plane: ControlPlane) -> Copy:
        """Return the copy of the control plane; starts it if this operator has not done so."""
        uid = control_plane.metadata.uid or ""
        if (copy := self._copies.find(uid)) is not None:
            return copy
        in_target = control_plane.at(required(control_plane).target)
        async with self._homes(in_target).connect(in_target) as place:
            with data_errors():
                await open_place(place)
        trigger, name = self._context.triggers.control_planes, control_plane.name
        return self._copies.begin(
            uid,
            source=partial(self._homes(control_plane).connect, control_plane),
            target=partial(self._homes(in_target).connect, in_target),
            changed=lambda: trigger.add(name),
        )

    def _working(self, control_plane: ControlPlane) -> list[str]:
        stores = self._context.stores
        return registrations_of(control_plane, stores=stores) or instances_of(control_plane, stores=stores)

    async def _check_data(self, control_plane: ControlPlane) -> None:
        """Raise ConditionError if the home lost the data: an API server in the new home would serve what is left."""
        if (served := served_data(control_plane)) is None:
            return
        async with self._homes(control_plane).connect(control_plane) as place:
            try:
                await check_served(place.client, place.prefix, served=served)
            except DataLost as error:
                message = f"failed to begin the move: {error}; see condition Ready"
                raise ConditionError(Reason.MIGRATING, message) from error
            except DataError as error:
                raise ConditionError(Reason.MIGRATING, str(error)) from error

    async def _revision(self, control_plane: ControlPlane) -> int:
        async with self._homes(control_plane).connect(control_plane) as place:
            with data_errors():
                return await place.client.revision()


def _waiting(what: str) -> ConditionError:
    return ConditionError(Reason.MIGRATING, what)


def _settings(control_plane: ControlPlane) -> MigrationSpec:
    return control_plane.spec.migration or MigrationSpec()


def _is_under_way(migration: MigrationStatus | None) -> bool:
    return migration is not None and migration.step is not None and not migration.step.is_cut
