"""Says in the status of a control plane how far its migration is. One of these writes changes the home."""

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
"""Characters of a message."""
_TRIES: Final = 5


class Report:
    """Writes, if home and migration are as they were seen."""

    def __init__(self, context: OperatorContext, *, copies: Copies) -> None:
        self._context = context
        self._copies = copies

    async def plan(self, control_plane: ControlPlane, plan: MigrationPlan, *, target: Home) -> ControlPlane:
        known = control_plane.status.migration
        if known is not None and known.step is MigrationStep.RETAINING:
            # Of the migration before this one there is still something to be removed.
            planned = known.model_copy(update={"plan": plan})
        else:
            planned = MigrationStatus(source=control_plane.home, target=target, plan=plan)
        if plan.blockers:
            told = "; ".join(f"{each.reason}: {each.message}" for each in plan.blockers)
            return await self.write(control_plane, planned, status="False", reason=Reason.MIGRATION_BLOCKED, told=told)
        told = f"{plan.keys} keys, {plan.bytes} bytes, about {plan.seconds} s; nothing stands in its way"
        return await self.write(control_plane, planned, status="False", reason=Reason.MIGRATION_PLANNED, told=told)

    async def commit(self, control_plane: ControlPlane, *, endpoint: str) -> ControlPlane:
        """Have the control plane live in the new home: this write, if it is as it was seen, and no other one.

        It names the new address too. So controllers wait until the Secrets do, and none starts for the former home.
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
        """Write a migration whose former home keeps its data for now, and other fields of the status."""
        return await self.write(
            control_plane,
            migration,
            status="False",
            reason=Reason.RETAINING_FORMER_HOME,
            told=f"it lives in its new home, {migration.target}; the former one keeps its data for now",
            **fields,
        )

    async def say(self, control_plane: ControlPlane, told: str, *, target: Home) -> ControlPlane:
        """Say what is done, or waited for, on the way to another home."""
        migration = control_plane.status.migration
        if migration is None or migration.step in {None, MigrationStep.COMPLETED}:
            waits = migration is not None and migration.step is None and migration.target == target
            planned = migration if waits else MigrationStatus(source=control_plane.home, target=target)
            return await self.write(control_plane, planned, status="False", reason=Reason.MIGRATION_BLOCKED, told=told)
        noted = migration.model_copy(update={**self._progress(control_plane), "message": told[:_LONGEST]})
        if migration.step.is_cut:
            reason = Reason.RETAINING_FORMER_HOME
            return await self.write(control_plane, noted, status="False", reason=reason, told=told)
        return await self.write(control_plane, noted, told=told)

    def seen(self, control_plane: ControlPlane) -> ControlPlane:
        """Return the control plane as the last write left it."""
        stored = self._context.stores.control_planes.get(("", control_plane.name))
        return ControlPlane.model_validate(stored) if stored is not None else control_plane

    async def step(self, control_plane: ControlPlane, step: MigrationStep, told: str, **update: Any) -> ControlPlane:
        """Write down a step before anything of it is done, unless the control plane changed meanwhile."""
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
        """Write the status, if home and migration are as they were seen; returns the control plane as it is then.

        Raises Conflict if another operator changed them.
        """
        store = self._context.stores.control_planes
        for attempt in range(_TRIES):
            wanted = with_fields(control_plane, migration=migration, **fields)
            conditions = with_condition(
                wanted.status.conditions,
                of=wanted,
                type=MIGRATING,
                status=status,
                reason=reason,
                message=told[:_LONGEST],
            )
            written = wanted.status.model_copy(update={"conditions": conditions})
            try:
                await self._context.status.write(store, control_plane, status=written, only_as_seen=True)
                break
            except Conflict:
                # Most are of others' fields: the gateway notes there when it was used.
                live = await self._context.client.get(CONTROL_PLANES, control_plane.name)
                store.apply(live)
                found = ControlPlane.model_validate(live)
                known = control_plane.status
                same = (found.status.home, found.status.migration) == (known.home, known.migration)
                if attempt == _TRIES - 1 or found.metadata.uid != control_plane.metadata.uid or not same:
                    raise
                control_plane = found
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
