"""Has control planes sleep: decides in each pass, and ends an API server when nothing uses it any more."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from kplane.api import ControlPlane, ControlPlaneClass, is_true
from kplane.api.conditions import HIBERNATED
from kplane.controlplane_operator.backends.base import Hibernating, Provision
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.hibernation.decision import Decision, decide, idle_after, start_of
from kplane.controlplane_operator.registrations.consumers import instances_of, registrations_of

__all__ = ["Sleeper"]


class Sleeper:
    """Asks the backend only about control planes that begin to sleep."""

    def __init__(self, context: OperatorContext, *, backend: Hibernating) -> None:
        self._stores = context.stores
        self._backend = backend

    async def decide(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> Decision:
        """Decide whether the control plane sleeps. Raises ConditionError where it cannot be found out."""
        start = start_of(control_plane, chosen=chosen)
        decision = decide(control_plane, start=start, idle=idle_after(chosen), now=datetime.now(UTC))
        if decision.sleep is None or _is_asleep(control_plane) or control_plane.status.endpoint is None:
            return decision
        kept = await self._backend.needs_api_server(control_plane)
        return replace(decision, sleep=None, kept=True, why=kept) if kept is not None else decision

    async def hibernate(self, control_plane: ControlPlane, decision: Decision) -> Provision | None:
        """Have no API server run for a control plane that is to sleep; None: one has to run now.

        Raises ConditionError (FallingAsleep) while it ends.
        """
        if decision.sleep is None:
            return None
        if not _is_asleep(control_plane) and self.waits_for(control_plane):
            return None
        return await self._backend.hibernate(control_plane)

    def waits_for(self, control_plane: ControlPlane) -> str:
        """Say what has to end before its API server; empty if nothing has."""
        if control_plane.status.endpoint is None:
            return ""
        if served := registrations_of(control_plane, stores=self._stores):
            return f"waiting until registrations are no longer ready: {', '.join(served)}"
        if working := instances_of(control_plane, stores=self._stores):
            return f"waiting until instances have ended, of registrations {', '.join(working)}"
        return ""


def _is_asleep(control_plane: ControlPlane) -> bool:
    return is_true(control_plane.status.conditions, HIBERNATED)
