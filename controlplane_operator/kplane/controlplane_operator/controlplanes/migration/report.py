"""Status of a migration. One of its writes changes the home of the control plane."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from kplane.api import ConditionStatus, ControlPlane, Home, MigrationPlan, MigrationStatus, MigrationStep
from kplane.api.conditions import MIGRATING
from kplane.api.reasons import Reason
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.migration.following import Copies
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.status.conditions import with_condition
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.provider import Conflict

__all__ = ["Report", "required", "with_fields"]

_LONGEST: Final = 1024
"""Maximum length of a message in characters."""
_TRIES: Final = 5


class Report:
    """Writes the migration status, provided that home and migration are unchanged since they were read."""

    def __init__(self, context: OperatorContext, *, copies: Copies) -> None:
        self._context = context
        self._copies = copies

    async def plan(self, control_plane: ControlPlane, plan: MigrationPlan, *, target: Home) -> ControlPlane:
        present = control_plane.status.migration
        if present is not None and present.step is MigrationStep.RETAINING:
            # The migration before this plan still has a former home to remove.
            planned = present.model_copy(update={"plan": plan})
        else:
            planned = MigrationStatus(source=control_plane.home, target=target, plan=plan)
        if plan.blockers:
            message = "; ".join(f"{blocker.reason}: {blocker.message}" for blocker in plan.blockers)
            return await self.write(
                control_plane, planned, status="False", reason=Reason.MIGRATION_BLOCKED, told=message
            )
        message = f"{plan.keys} keys, {plan.bytes} bytes, about {plan.seconds} s; nothing stands in its way"
        return await self.write(control_plane, planned, status="False", reason=Reason.MIGRATION_PLANNED, told=message)

    async def commit(self, control_plane: ControlPlane, *, endpoint: str) -> ControlPlane:
        """Change the home of the control plane, provided that home and migration are unchanged.

        No other write changes the home.

        The write also contains the new address. So controllers wait until the Secrets name that address, and none
        starts against the former home.
        """
        migration = required(control_plane)
        arrived = migration.model_copy(
            update={
                "step": MigrationStep.RETAINING,
                "cut_time": datetime.now(UTC),
                "lag_milliseconds": 0,
                "message": None,
            }
        )
        return await self.retain(control_plane, arrived, home=migration.target, endpoint=endpoint)

    async def retain(self, control_plane: ControlPlane, migration: MigrationStatus, **fields: Any) -> ControlPlane:
        """Write the status of a migration whose former home keeps its data for now, with other fields."""
        return await self.write(
            control_plane,
            migration,
            status="False",
            reason=Reason.RETAINING_FORMER_HOME,
            told=f"it lives in its new home, {migration.target}; the former one keeps its data for now",
            **fields,
        )

    async def say(self, control_plane: ControlPlane, told: str, *, target: Home) -> ControlPlane:
        """Report the present action or obstacle of a migration to `target`."""
        migration = control_plane.status.migration
        if migration is None or migration.step is None or migration.step is MigrationStep.COMPLETED:
            is_planned = migration is not None and migration.step is None and migration.target == target
            planned = migration if is_planned else MigrationStatus(source=control_plane.home, target=target)
            return await self.write(control_plane, planned, status="False", reason=Reason.MIGRATION_BLOCKED, told=told)
        noted = migration.model_copy(update={**self._progress(control_plane), "message": told[:_LONGEST]})
        if migration.step.is_cut:
            reason = Reason.RETAINING_FORMER_HOME
            return await self.write(control_plane, noted, status="False", reason=reason, told=told)
        return await self.write(control_plane, noted, told=told)

    def seen(self, control_plane: ControlPlane) -> ControlPlane:
        """Return the control plane from the cache, which has the latest write."""
        stored = self._context.stores.control_planes.get(("", control_plane.name))
        return ControlPlane.model_validate(stored) if stored is not None else control_plane

    async def step(self, control_plane: ControlPlane, step: MigrationStep, told: str, **update: Any) -> ControlPlane:
        """Record a step before any action of it; raises Conflict if home or migration changed meanwhile."""
        migration = required(control_plane)
        fields = {**self._progress(control_plane), "step": step, "message": told, **update}
        return await self.write(control_plane, migration.model_copy(update=fields), told=told)

    def _progress(self, control_plane: ControlPlane) -> dict[str, Any]:
        copy, migration = self._copies.find(control_plane.metadata.uid or ""), required(control_plane)
        if copy is None or copy.follower is None:
            return {}
        keys, all_keys = copy.follower.keys, migration.plan.keys if migration.plan is not None else 0
        return {
            "keys": keys,
            "bytes": copy.follower.size,
            "percent": 100 if copy.complete or not all_keys else min(99, keys * 100 // all_keys),
            "lag_milliseconds": round(copy.lag_seconds * 1000),
        }

    async def write(
        self,
        control_plane: ControlPlane,
        migration: MigrationStatus | None,
        *,
        status: ConditionStatus = "True",
        reason: Reason = Reason.MIGRATING,
        told: str,
        **fields: Any,
    ) -> ControlPlane:
        """Write the migration status if home and migration are unchanged; returns the control plane after the write.

        Raises Conflict if another operator changed home or migration, or after five attempts. Raises ConditionError if
        the control plane is gone.
        """
        store = self._context.stores.control_planes
        for attempt in range(_TRIES):
            updated = with_fields(control_plane, migration=migration, **fields)
            conditions = with_condition(
                updated.status.conditions,
                of=updated,
                type=MIGRATING,
                status=status,
                reason=reason,
                message=told[:_LONGEST],
            )
            written = updated.status.model_copy(update={"conditions": conditions})
            try:
                await self._context.status.write(store, control_plane, status=written, only_as_seen=True)
                break
            except Conflict:
                # Most conflicts are about other fields, such as the time of last use that the gateway writes.
                live = await self._context.client.get(CONTROL_PLANES, control_plane.name)
                store.apply(live)
                latest = ControlPlane.model_validate(live)
                seen_status = control_plane.status
                is_unchanged = (latest.status.home, latest.status.migration) == (
                    seen_status.home,
                    seen_status.migration,
                )
                if attempt == _TRIES - 1 or latest.metadata.uid != control_plane.metadata.uid or not is_unchanged:
                    raise
                control_plane = latest
        stored = store.get(("", control_plane.name))
        if stored is None or stored["metadata"]["uid"] != control_plane.metadata.uid:
            raise ConditionError(Reason.MIGRATING, "the control plane is gone")
        return ControlPlane.model_validate(stored)


def with_fields(control_plane: ControlPlane, **fields: Any) -> ControlPlane:
    return control_plane.model_copy(update={"status": control_plane.status.model_copy(update=fields)})


def required(control_plane: ControlPlane) -> MigrationStatus:
    if control_plane.status.migration is None:
        raise ConditionError(Reason.MIGRATING, "the status does not name a migration any more")
    return control_plane.status.migration
