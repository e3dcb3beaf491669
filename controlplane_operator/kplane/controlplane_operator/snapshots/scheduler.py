"""Scheduler of ControlPlaneSnapshots: creates snapshots by the schedule of a class, and deletes the oldest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from kplane.api import ControlPlane, SnapshotPhase, SnapshotSettings
from kplane.api.clocks import is_future, read_time
from kplane.api.names import (
    CONTROL_PLANE_LABEL,
    SCHEDULED_AT_ANNOTATION,
    SCHEDULED_FOR_ANNOTATION,
    label_value,
    snapshot_name,
)
from kplane.controlplane_operator.class_policy import class_in_force
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.kinds import CONTROL_PLANE_SNAPSHOTS
from kplane.controlplane_operator.schedule import Schedule
from kplane.controlplane_operator.snapshots.locations import possible_names
from kplane.controlplane_operator.status.conditions import is_paused
from kplane.controlplane_operator.status.partial import as_recorded
from kplane.controlplane_operator.watch.cache import Key, Object
from kplane.controlplane_operator.watch.predicates import may_need_snapshots
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import AlreadyExists, NotFound, Result
from kplane.provider.logs import log_fields

__all__ = ["SnapshotScheduler", "scheduled_of", "settings_of"]

_LONGEST_SECONDS: Final = 3600.0
"""Maximum time until the next reconcile, because the clock may be set meanwhile."""


class SnapshotScheduler:
    """Scheduler that derives due snapshots from the existing objects alone, and remembers no former decision."""

    def __init__(self, context: OperatorContext, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._context = context
        self._now = now

    async def reconcile(self, key: Key) -> Result | None:
        """Create the snapshot that is due and delete surplus ones. Returns the time until the next snapshot is due."""
        obj = self._context.stores.control_planes.get(key)
        if obj is None or not may_need_snapshots(obj, classes=self._context.stores.classes):
            return None
        control_plane = as_recorded(obj)
        settings = settings_of(control_plane, stores=self._context.stores)
        schedule = Schedule.read(settings.schedule) if settings is not None else None
        if settings is None or schedule is None or is_paused(control_plane):
            return None
        with log_fields(object=f"ControlPlane/{key[1]}"):
            snapshots = scheduled_of(control_plane, stores=self._context.stores)
            await self._delete_old(snapshots, retain=settings.retain)
            return await self._make(control_plane, schedule=schedule, found=snapshots)

    async def _make(self, control_plane: ControlPlane, *, schedule: Schedule, found: list[Object]) -> Result | None:
        now, uid = self._now(), control_plane.metadata.uid or ""
        last = schedule.last(now)
        if any(_phase(snapshot) != SnapshotPhase.COMPLETED for snapshot in found):
            # The pending snapshot will contain the current data as soon as it succeeds. Until then a new snapshot would
            # fail for the same reason.
            return None
        # Ignore snapshots, and a control plane, from the future: they were made while the clock was wrong.
        times = [time for snapshot in found if (time := _time(snapshot)) is not None and time <= now]
        newest = times[-1] if times else control_plane.metadata.creation_timestamp
        if newest is not None and last <= newest and not is_future(newest, now=now):
            last = schedule.following(now)
        rest = (last + schedule.delay(uid, at=last) - now).total_seconds()
        if rest > 0:
            return Result(min(rest, _LONGEST_SECONDS))
        body = {
            "metadata": {
                "name": snapshot_name(control_plane.name, time=last.strftime("%Y%m%d%H%M")),
                "labels": {CONTROL_PLANE_LABEL: label_value(control_plane.name)},
                "annotations": {SCHEDULED_FOR_ANNOTATION: uid, SCHEDULED_AT_ANNOTATION: last.isoformat()},
            },
            "spec": {"controlPlaneRef": {"name": control_plane.name}},
        }
        await self._create(body, uid=uid)
        return Result(_LONGEST_SECONDS)

    async def _create(self, body: Object, *, uid: str) -> None:
        """Create the snapshot, under a longer name if another object, such as an imported snapshot, has its name."""
        metadata, snapshots = body["metadata"], self._context.stores.snapshots
        for name in possible_names(metadata["name"], uid=uid):
            named = {**body, "metadata": {**metadata, "name": name}}
            try:
                await self._context.client.create(CONTROL_PLANE_SNAPSHOTS, named)
            except AlreadyExists:
                existing = snapshots.get(("", name))
                annotations = (existing["metadata"].get("annotations") or {}) if existing is not None else {}
                if existing is not None and annotations.get(SCHEDULED_FOR_ANNOTATION) != uid:
                    continue
            return

    async def _delete_old(self, found: list[Object], *, retain: int) -> None:
        completed = [snapshot for snapshot in found if _phase(snapshot) == SnapshotPhase.COMPLETED]
        # Snapshots with a time in the future are not counted, so that later snapshots are not deleted in their favour.
        # They stay until their time has come, because the wrong clock may be the present clock.
        present = [
            snapshot
            for snapshot in completed
            if (time := _time(snapshot)) is None or not is_future(time, now=self._now())
        ]
        for snapshot in present[:-retain]:
            if "deletionTimestamp" not in snapshot["metadata"]:
                with contextlib.suppress(NotFound):
                    await self._context.client.delete(CONTROL_PLANE_SNAPSHOTS, snapshot["metadata"]["name"])


def settings_of(control_plane: ControlPlane, *, stores: Stores) -> SnapshotSettings | None:
    """Return the snapshot settings of the class. Returns None for a control plane that gets no snapshots."""
    if control_plane.spec.endpoint_ref is not None or control_plane.status.endpoint is None or control_plane.deleting:
        return None
    chosen_class = class_in_force(control_plane, classes=stores.classes).chosen
    return chosen_class.spec.snapshots if chosen_class is not None else None


def scheduled_of(control_plane: ControlPlane, *, stores: Stores) -> list[Object]:
    """Return the scheduled snapshots of this control plane, the oldest first."""
    candidates = stores.snapshots.by("scheduled for", control_plane.metadata.uid or "")
    snapshots_of_it = [
        snapshot for snapshot in candidates if snapshot["spec"]["controlPlaneRef"]["name"] == control_plane.name
    ]
    timed = [
        (time, snapshot["metadata"]["name"], snapshot)
        for snapshot in snapshots_of_it
        if (time := _time(snapshot)) is not None
    ]
    return [snapshot for _, _, snapshot in sorted(timed, key=lambda found: found[:2])]


def _phase(snapshot: Object) -> str | None:
    phase: str | None = (snapshot.get("status") or {}).get("phase")
    return phase


def _time(snapshot: Object) -> datetime | None:
    return read_time(snapshot["metadata"].get("annotations", {}).get(SCHEDULED_AT_ANNOTATION))
