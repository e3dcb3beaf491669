"""Reconciler of ControlPlaneClass: reports validity, number of users and problems of a class in its status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import ValidationError

from kplane.api import ControlPlaneClass
from kplane.api.reasons import Reason
from kplane.controlplane_operator.addons.bundles import Bundles
from kplane.controlplane_operator.class_policy import invalid_class
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.failures import Failures
from kplane.controlplane_operator.schedule import Schedule
from kplane.controlplane_operator.status.conditions import with_condition, with_supported
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.partial import PartialClass
from kplane.controlplane_operator.watch.cache import Key, Object
from kplane.controlplane_operator.watch.class_usage import named, unserved
from kplane.provider import Result
from kplane.provider.logs import log_fields

__all__ = ["ControlPlaneClassReconciler"]


class ControlPlaneClassReconciler:
    """Maintains the status of classes, and records an Event if a class in use is deleted."""

    def __init__(self, context: OperatorContext, *, bundles: Bundles) -> None:
        self.failures: Final = Failures(
            context, controller="controlplaneclass", store=context.stores.classes, written=PartialClass
        )
        self._context = context
        self._bundles = bundles
        self._seen: dict[Key, PartialClass] = {}

    async def reconcile(self, key: Key) -> Result | None:
        """Update the status of the class of this key."""
        obj = self._context.stores.classes.get(key)
        users = self._context.stores.control_planes.by("class", key[1])
        with log_fields(object=f"ControlPlaneClass/{key[1]}"):
            current = PartialClass.of(obj) if obj is not None else None
            self._tell_end(key, present=current, users=users)
            if obj is None or current is None:
                return None
            self._seen[key] = current
            await self._publish(current, obj=obj, users=users)
            await self.failures.over(key)
        return None

    async def _publish(self, current: PartialClass, *, obj: Object, users: Sequence[Object]) -> None:
        supported: list[str] = []
        failure: ConditionError | None = None
        try:
            control_plane_class = ControlPlaneClass.model_validate(obj)
        except ValidationError as error:
            failure = invalid_class(current.name, error)
        else:
            supported = unserved(control_plane_class, users=users)
            failure = _schedule_trouble(control_plane_class) or await self._addons_trouble(
                control_plane_class.spec.addons
            )
        conditions = with_condition(
            current.status.conditions,
            of=current,
            status="True" if failure is None else "False",
            reason=failure.reason if failure is not None else Reason.VALID,
            message=failure.message if failure is not None else "control planes can use this class",
        )
        status = current.status.model_copy(
            update={
                "observed_generation": current.metadata.generation,
                "control_planes": len(users),
                "conditions": with_supported(conditions, of=current, missing=supported),
            }
        )
        await self._context.status.write(self._context.stores.classes, current, status=status)

    async def _addons_trouble(self, addons: list[str]) -> ConditionError | None:
        failures = await self._bundles.problems(addons)
        message = "; ".join(failure.message for failure in failures)
        return ConditionError(failures[0].reason, message) if failures else None

    def _tell_end(self, key: Key, *, present: PartialClass | None, users: Sequence[Object]) -> None:
        """Record a Warning Event about a class that was deleted while control planes name it."""
        gone = self._seen.pop(key, None)
        if gone is None or (present is not None and present.metadata.uid == gone.metadata.uid):
            return
        if users:
            self._context.events.record(
                gone,
                reason="DeletedInUse",
                message=f"the class was deleted, and is named by {named(users)}; what it decided last stays in force"
                " for them until it is created again, or they name another one",
                warning=True,
            )


def _schedule_trouble(chosen: ControlPlaneClass) -> ConditionError | None:
    settings = chosen.spec.snapshots
    try:
        if settings is not None:
            Schedule(settings.schedule)
    except ValueError as error:
        kept = "control planes keep the schedule that they had, and without one no snapshot is made"
        return ConditionError(Reason.SCHEDULE_INVALID, f"spec.snapshots.schedule: {error}; until then, {kept}")
    return None
