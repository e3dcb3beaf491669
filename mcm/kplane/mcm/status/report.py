"""Contents of a registration's status about its instances: the condition Running, and status.instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from kplane.api import RUNNING
from kplane.mcm.describe.kinds import InstanceKind
from kplane.mcm.instance.lifecycle import Instance
from kplane.mcm.reasons import Reason

__all__ = ["Report", "Summary", "Transition", "foremost", "shorten", "summarize", "transition_of"]

_MESSAGE_LENGTH: Final = 1000

Transition = tuple[str, str, tuple[tuple[str, str], ...] | None]
"""Status and reason of the condition, and the instance; a new message alone is no transition."""


_SENTENCES: Final = {
    Reason.INSTANCE_RUNNING: "kube-controller-manager runs",
    Reason.STARTING: "kube-controller-manager is starting",
    Reason.ENDED: "no instance runs any more",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report of the instances of one registration."""

    reason: Reason
    message: str = ""
    """Message of the condition; empty: the default message of the reason."""
    instance: Mapping[str, Any] | None = None
    """`status.instance`; None if no instance exists or is about to start."""

    @property
    def status(self) -> str:
        """Status of the condition."""
        return "True" if self.reason is Reason.INSTANCE_RUNNING else "False"

    @property
    def sentence(self) -> str:
        """Message of the condition."""
        return shorten(self.message or _SENTENCES.get(self.reason, ""), length=_MESSAGE_LENGTH)

    @property
    def transition(self) -> Transition:
        """Part of the report that is written at once if it changes."""
        return self.status, self.reason, _pairs(self.instance)

    def applied(self, registration: Mapping[str, Any]) -> dict[str, Any]:
        """Return the object to apply to the status of a registration, from the last seen version of the registration.

        The API server refuses it (Conflict) if the registration has changed since, or was replaced.
        """
        metadata, before = registration["metadata"], _condition(registration)
        since = before.get("lastTransitionTime") if before.get("status") == self.status else None
        condition = {
            "type": RUNNING,
            "status": self.status,
            "reason": self.reason,
            "message": self.sentence,
            "lastTransitionTime": since or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "observedGeneration": metadata.get("generation", 0),
        }
        instance = {"instance": dict(self.instance)} if self.instance is not None else {}
        return {
            "metadata": {"name": metadata["name"], "resourceVersion": metadata["resourceVersion"]},
            "status": {"conditions": [condition], **instance},
        }


def shorten(message: str, *, length: int) -> str:
    """Keep the start of a message, which has the kind of an end, and its end, which has the last lines of the log."""
    return message if len(message) <= length else f"{message[:200]}…{message[201 - length :]}"


def transition_of(registration: Mapping[str, Any]) -> tuple[Transition, str] | None:
    """Return the transition and the message in a registration's status; None if it reports no instance."""
    condition, instance = _condition(registration), (registration.get("status") or {}).get("instance")
    if not condition and instance is None:
        return None
    transition = str(condition.get("status", "")), str(condition.get("reason", "")), _pairs(instance)
    return transition, str(condition.get("message", ""))


def _condition(registration: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = (registration.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == RUNNING), {})


def _pairs(instance: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...] | None:
    return tuple(sorted((name, str(value)) for name, value in instance.items())) if instance is not None else None


class Summary(NamedTuple):
    """Reason and message for the instances of a registration."""

    reason: Reason
    message: str


def foremost(instances: Sequence[Instance]) -> Instance:
    """Return the instance to report: the first of the instances with the worst reason."""
    return max(instances, key=lambda each: _RANKS.get(each.reason, _RANK_OF_TROUBLE))


_RANK_OF_TROUBLE: Final = 2
_RANKS: Final[Mapping[Reason | None, int]] = {Reason.INSTANCE_RUNNING: 0, Reason.STARTING: 1, None: 3}


def summarize(instances: Sequence[Instance]) -> Summary | None:
    """Return that all instances run, or why an instance does not; None while the reason is about to change.

    If controllers are the only instance, the message is the instance's own message.
    """
    worst = foremost(instances)
    reason = worst.reason
    if reason is None:
        return None
    if [instance.kind for instance in instances] == [InstanceKind.CONTROLLERS]:
        return Summary(reason, worst.message)
    if worst.message:
        return Summary(reason, f"{worst.kind.program}: {worst.message}")
    programs = [instance.kind.program for instance in instances]
    sentences = {
        Reason.INSTANCE_RUNNING: " and ".join(programs) + (" run" if len(programs) > 1 else " runs"),
        Reason.STARTING: f"{worst.kind.program} is starting",
    }
    return Summary(reason, sentences.get(reason, worst.kind.program))
