"""How far the removal of a control plane has come, in its status: the condition Deleting, and Ready along with it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from kplane.api import DELETING, ControlPlane, ControlPlanePhase, DeletionPolicy, find_condition
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.partial import as_recorded
from kplane.controlplane_operator.status.reasons import Reason
from kplane.controlplane_operator.status.writer import with_condition

__all__ = ["Progress"]


_SENTENCES: Final = {
    Reason.REVOKING_CREDENTIALS: "revoking credentials and ending what runs",
    Reason.DELETING_DATA: "deleting the data",
    Reason.VERIFYING_EMPTY: "looking whether data are left",
    Reason.RETAINING_DATA: "leaving the data and a record of them",
    Reason.REMOVING_NAMESPACE: "removing the namespace",
}


class Progress:
    """The removal of one control plane, as far as one look at it gets."""

    def __init__(self, context: OperatorContext, control_plane: ControlPlane, *, policy: DeletionPolicy) -> None:
        self.step = Reason.REGISTRATIONS_PENDING
        self._context = context
        self._control_plane = control_plane
        self._policy = policy
        self._notes: list[str] = []
        began = find_condition(control_plane.status.conditions, DELETING)
        self._began = began.last_transition_time if began is not None else datetime.now(UTC)

    @property
    def seconds(self) -> float:
        """For how long the removal has been going on, also in an operator that was there before.

        From our first look at it, and not from the request: while no operator ran, nobody was waited for.
        """
        return (datetime.now(UTC) - self._began).total_seconds()

    def note(self, sentence: str) -> None:
        """Have this said with every step from now on."""
        self._notes.append(sentence)

    async def begin(self, step: Reason) -> None:
        """Go on to a step, and say so before anything of it is done."""
        self.step = step
        await self.tell(_SENTENCES.get(step, ""))

    async def tell(self, message: str) -> None:
        """Say what the present step does or waits for."""
        message = "; ".join(filter(None, (message, *self._notes)))
        before = self._control_plane
        conditions = with_condition(
            before.status.conditions, of=before, status="False", reason=Reason.DELETING, message=message
        )
        conditions = with_condition(
            conditions, of=before, type=DELETING, status="True", reason=self.step, message=message
        )
        status = before.status.model_copy(
            update={
                "phase": ControlPlanePhase.TERMINATING,
                "deletion_policy": self._policy if before.status.deletion_policy is not None else None,
                "observed_generation": before.metadata.generation,
                "conditions": conditions,
            }
        )
        await self._context.status.write(self._context.stores.control_planes, before, status=status)
        self._control_plane = self._seen() or before.model_copy(update={"status": status})

    @property
    def control_plane(self) -> ControlPlane:
        """The control plane as our own writes left it, where nobody else changed what was asked for."""
        return self._control_plane

    def _seen(self) -> ControlPlane | None:
        obj = self._context.stores.control_planes.get(("", self._control_plane.name))
        found = as_recorded(obj) if obj is not None else None
        before = self._control_plane.metadata
        if found is None or (found.metadata.uid, found.metadata.generation) != (before.uid, before.generation):
            return None
        return found
