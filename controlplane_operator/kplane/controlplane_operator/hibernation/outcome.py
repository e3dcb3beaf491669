"""What a pass over a control plane says of its sleep: the field of its status, condition Hibernated, and Ready."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from kplane.api import (
    Condition,
    ConditionStatus,
    ControlPlane,
    HibernationReason,
    HibernationStatus,
    find_condition,
    is_true,
)
from kplane.api.conditions import HIBERNATED
from kplane.api.names import SLEEP_REQUESTED_ANNOTATION, WAKE_REQUESTED_ANNOTATION
from kplane.api.reasons import FALLS_ASLEEP, Reason
from kplane.controlplane_operator.hibernation.decision import Decision
from kplane.controlplane_operator.status.conditions import with_condition
from kplane.controlplane_operator.status.errors import ConditionError

__all__ = ["Outcome", "begun", "ended"]

_PATIENCE: Final = timedelta(seconds=60)
"""So long the control plane stays Ready while its API server starts."""
_WHY: Final = {
    HibernationReason.NOT_USED_YET: "no client has asked for it yet",
    HibernationReason.REQUESTED: f"annotation {SLEEP_REQUESTED_ANNOTATION} asked for that",
    HibernationReason.IDLE: "no client used it for as long as its class says",
    HibernationReason.ROOM_NEEDED: "the limit of awake control planes is reached, and this one is idle for longest",
}
_WHY_AWAKE: Final = frozenset({Reason.AWAKE, Reason.KEPT_AWAKE})
"""Reasons that stay while a control plane is awake. `kplane doctor` reports NamespaceStuck, so that one has to end."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the status is to say."""

    sleep: HibernationStatus | None
    told: tuple[ConditionStatus, Reason, str] | None = None
    """Status, reason and message of condition Hibernated; None: it is left out, or as it was."""
    ready: tuple[Reason, str] | None = None
    """Reason and message of condition Ready, which is True; None: it does not depend on the sleep."""

    def conditions(self, conditions: Iterable[Condition], *, of: ControlPlane) -> list[Condition]:
        """Return the conditions with what the sleep makes of Hibernated."""
        if self.told is None:
            return list(conditions)
        status, reason, message = self.told
        return with_condition(conditions, of=of, type=HIBERNATED, status=status, reason=reason, message=message)


def begun(control_plane: ControlPlane, decision: Decision) -> Outcome | None:
    """Return what is written before anything is started or ended; None where there is nothing to say.

    What is not published yet says nothing of its sleep before that.
    """
    known = control_plane.status
    if known.endpoint is None:
        return None
    if decision.sleep is not None and known.hibernation is None:
        return _falls_asleep(decision.sleep, "")
    if decision.sleep is None and known.hibernation is not None and is_true(known.conditions, HIBERNATED):
        return _wakes(known.hibernation, f"woken, because {decision.why}: its API server starts")
    return None


def ended(
    control_plane: ControlPlane,
    decision: Decision,
    *,
    published: bool,
    asleep: bool,
    failure: ConditionError | None,
    waiting: str = "",
) -> Outcome:
    """Return what is written at the end of a pass that got so far.

    `published`: users may rely on the control plane. `asleep`: no API server runs for it. `waiting` says what keeps its
    API server from ending.
    """
    if decision.sleep is None:
        return _awake(control_plane, decision, published=published, failure=failure)
    if not published:
        return Outcome(None)
    if asleep and decision.crowded:
        waits = Reason.WAITS_FOR_ROOM, f"it is to wake, because {decision.why}"
        return Outcome(decision.sleep, told=("True", *waits), ready=waits if failure is None else None)
    if asleep:
        said = Reason.HIBERNATED, _asleep(decision.sleep)
        return Outcome(decision.sleep, told=("True", *said), ready=said if failure is None else None)
    if failure is None or failure.reason in FALLS_ASLEEP:
        return _falls_asleep(decision.sleep, waiting, failure=failure)
    return Outcome(decision.sleep)


def _awake(
    control_plane: ControlPlane, decision: Decision, *, published: bool, failure: ConditionError | None
) -> Outcome:
    sleep, known = control_plane.status.hibernation, find_condition(control_plane.status.conditions, HIBERNATED)
    if decision.kept:
        # Whatever fails besides: its API server runs, and clients are to reach it.
        reason = Reason.NAMESPACE_STUCK if decision.stuck else Reason.KEPT_AWAKE
        return Outcome(None, told=("False", reason, f"kept awake, because {decision.why}"))
    if sleep is not None and failure is not None:
        since = known.last_transition_time if known is not None and known.status == "False" else None
        if failure.reason.transient and (since is None or datetime.now(UTC) - since < _PATIENCE):
            return _wakes(sleep, f"woken, because {decision.why}: {failure.message}")
        return Outcome(sleep)
    if known is None and sleep is None and (decision.always or not published):
        return Outcome(None)
    if sleep is None and known is not None and known.reason in _WHY_AWAKE:
        return Outcome(None)  # it says why it is awake since the last time that it was to sleep
    return Outcome(None, told=("False", Reason.AWAKE, f"awake, because {decision.why}"))


def _asleep(sleep: HibernationStatus) -> str:
    return (
        f"no API server runs, because {_WHY[sleep.reason]}; a change of spec or annotation"
        f" {WAKE_REQUESTED_ANNOTATION} wakes it"
    )


def _falls_asleep(sleep: HibernationStatus, waiting: str, *, failure: ConditionError | None = None) -> Outcome:
    """Return what is said while the API server ends. Ready stays True on a failure: a request wakes it still."""
    what = failure.message if failure is not None else waiting
    said = f"its API server ends, because {_WHY[sleep.reason]}" + (f"; {what}" if what else "")
    reason = failure.reason if failure is not None else Reason.FALLING_ASLEEP
    return Outcome(sleep, told=("False", reason, said), ready=(Reason.FALLING_ASLEEP, said))


def _wakes(sleep: HibernationStatus, message: str) -> Outcome:
    said = Reason.WAKING, message
    return Outcome(sleep, told=("False", *said), ready=said)
