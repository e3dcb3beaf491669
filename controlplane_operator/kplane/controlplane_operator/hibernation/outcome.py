"""Status of a control plane's sleep after a pass: field `hibernation`, and conditions Hibernated and Ready."""

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
"""Time for which the control plane stays Ready while its API server starts."""
_WHY: Final = {
    HibernationReason.NOT_USED_YET: "no client has asked for it yet",
    HibernationReason.REQUESTED: f"annotation {SLEEP_REQUESTED_ANNOTATION} asked for that",
    HibernationReason.IDLE: "no client used it for as long as its class says",
    HibernationReason.ROOM_NEEDED: "the limit of awake control planes is reached, and this one is idle for longest",
}
_WHY_AWAKE: Final = frozenset({Reason.AWAKE, Reason.KEPT_AWAKE})
"""Reasons that stay while a control plane is awake. NamespaceStuck is not among them: `kplane doctor` reports it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The part of the status that is about the sleep."""

    sleep: HibernationStatus | None
    told: tuple[ConditionStatus, Reason, str] | None = None
    """Status, reason and message of condition Hibernated; None to leave the condition as it is."""
    ready: tuple[Reason, str] | None = None
    """Reason and message of condition Ready, which is True; None if Ready does not depend on the sleep."""

    def conditions(self, conditions: Iterable[Condition], *, of: ControlPlane) -> list[Condition]:
        """Return the conditions with the new condition Hibernated, if it changes."""
        if self.told is None:
            return list(conditions)
        status, reason, message = self.told
        return with_condition(conditions, of=of, type=HIBERNATED, status=status, reason=reason, message=message)


def begun(control_plane: ControlPlane, decision: Decision) -> Outcome | None:
    """Return the outcome to write before an API server starts or stops; None if there is none.

    An unpublished control plane has no such outcome.
    """
    status = control_plane.status
    if status.endpoint is None:
        return None
    if decision.sleep is not None and status.hibernation is None:
        return _falls_asleep(decision.sleep, "")
    if decision.sleep is None and status.hibernation is not None and is_true(status.conditions, HIBERNATED):
        return _wakes(status.hibernation, f"woken, because {decision.why}: its API server starts")
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
    """Return the outcome at the end of a pass.

    `published` means that users may rely on the control plane, and `asleep` that no API server runs for it. `waiting`
    is the obstacle to the end of its API server.
    """
    if decision.sleep is None:
        return _awake(control_plane, decision, published=published, failure=failure)
    if not published:
        return Outcome(None)
    if asleep and decision.crowded:
        waiting_reason = Reason.WAITS_FOR_ROOM, f"it is to wake, because {decision.why}"
        return Outcome(
            decision.sleep, told=("True", *waiting_reason), ready=waiting_reason if failure is None else None
        )
    if asleep:
        told: tuple[ConditionStatus, Reason, str] = ("True", *_told_asleep(decision.sleep))
        asleep_reason = Reason.HIBERNATED, _asleep(decision.sleep)
        return Outcome(decision.sleep, told=told, ready=asleep_reason if failure is None else None)
    if failure is None or failure.reason in FALLS_ASLEEP:
        return _falls_asleep(decision.sleep, waiting, failure=failure)
    return Outcome(decision.sleep)


def _awake(
    control_plane: ControlPlane, decision: Decision, *, published: bool, failure: ConditionError | None
) -> Outcome:
    sleep, hibernated = control_plane.status.hibernation, find_condition(control_plane.status.conditions, HIBERNATED)
    if decision.kept:
        # Other failures do not matter here, because its API server runs and clients must reach it.
        reason = Reason.NAMESPACE_STUCK if decision.stuck else Reason.KEPT_AWAKE
        return Outcome(None, told=("False", reason, f"kept awake, because {decision.why}"))
    if sleep is not None and failure is not None:
        since = hibernated.last_transition_time if hibernated is not None and hibernated.status == "False" else None
        if failure.reason.transient and (since is None or datetime.now(UTC) - since < _PATIENCE):
            return _wakes(sleep, f"woken, because {decision.why}: {failure.message}")
        return Outcome(sleep)
    if hibernated is None and sleep is None and (decision.always or not published):
        return Outcome(None)
    if sleep is None and hibernated is not None and hibernated.reason in _WHY_AWAKE:
        return Outcome(None)  # the condition has the reason of the last time that the control plane was to sleep
    return Outcome(None, told=("False", Reason.AWAKE, f"awake, because {decision.why}"))


def _asleep(sleep: HibernationStatus) -> str:
    return (
        f"no API server runs, because {_WHY[sleep.reason]}; a change of spec or annotation"
        f" {WAKE_REQUESTED_ANNOTATION} wakes it"
    )


def _told_asleep(sleep: HibernationStatus) -> tuple[Reason, str]:
    """Return reason and message of condition Hibernated. They keep the cause of a deletion inside that does not end."""
    if sleep.stuck_namespace is None:
        return Reason.HIBERNATED, _asleep(sleep)
    return Reason.NAMESPACE_STUCK, f"at the beginning of this sleep, {sleep.stuck_namespace}; {_asleep(sleep)}"


def _falls_asleep(sleep: HibernationStatus, waiting: str, *, failure: ConditionError | None = None) -> Outcome:
    """Return the outcome while the API server ends.

    Ready stays True despite a failure, because a request still wakes the control plane.
    """
    obstacle = failure.message if failure is not None else waiting
    message = f"its API server ends, because {_WHY[sleep.reason]}" + (f"; {obstacle}" if obstacle else "")
    reason = failure.reason if failure is not None else Reason.FALLING_ASLEEP
    return Outcome(sleep, told=("False", reason, message), ready=(Reason.FALLING_ASLEEP, message))


def _wakes(sleep: HibernationStatus, message: str) -> Outcome:
    waking = Reason.WAKING, message
    return Outcome(sleep, told=("False", *waking), ready=waking)
