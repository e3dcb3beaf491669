"""What is said of an instance in the status of its registration: the condition Running, and status.instance."""

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
"""Status and reason of the condition, and the instance; a message alone is no transition."""


_SENTENCES: Final = {
    Reason.INSTANCE_RUNNING: "kube-controller-manager runs",
    Reason.STARTING: "kube-controller-manager is starting",
    Reason.ENDED: "no instance runs any more",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What is to be said of the instance of one registration."""

    reason: Reason
    message: str = ""
    """Empty: the sentence that goes with the reason."""
    instance: Mapping[str, Any] | None = None
    """`status.instance`; None if there is none, and none is about to start."""

    @property
    def status(self) -> str:
        """Of the condition."""
        return "True" if self.reason is Reason.INSTANCE_RUNNING else "False"

    @property
    def sentence(self) -> str:
        """Message of the condition."""
        return shorten(self.message or _SENTENCES.get(self.reason, ""), length=_MESSAGE_LENGTH)

    @property
    def transition(self) -> Transition:
        """What has to differ for this to be worth a write."""
        return self.status, self.reason, _pairs(self.instance)

    def applied(self, registration: Mapping[str, Any]) -> dict[str, Any]:
        """Return the object to apply to the status of a registration, which is as it was last seen.

        The API server refuses it (Conflict) where the registration changed since, or is another one of that name.
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
    """Keep how an instance ended, which comes first, and the last words of its log."""
    return message if len(message) <= length else f"{message[:200]}…{message[201 - length :]}"


def transition_of(registration: Mapping[str, Any]) -> tuple[Transition, str] | None:
    """Return what the status of a registration says of its instance, and the message; None if it says nothing."""
    condition, instance = _condition(registration), (registration.get("status") or {}).get("instance")
    if not condition and instance is None:
        return None
    transition = str(condition.get("status", "")), str(condition.get("reason", "")), _pairs(instance)
    return transition, str(condition.get("message", ""))


def _condition(registration: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = (registration.get("status") or {}).get("conditions") or ()
    return next((found for found in conditions if found.get("type") == RUNNING), {})


def _pairs(instance: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...] | None:
    return tuple(sorted((name, str(value)) for name, value in instance.items())) if instance is not None else None


class Summary(NamedTuple):
    """What a registration is told of its instances."""

    reason: Reason
    message: str


def foremost(instances: Sequence[Instance]) -> Instance:
    """Return the one that is to be told of: the first of those that are furthest from running."""
    return max(instances, key=lambda each: _RANKS.get(each.reason, _RANK_OF_TROUBLE))


_RANK_OF_TROUBLE: Final = 2
_RANKS: Final[Mapping[Reason | None, int]] = {Reason.INSTANCE_RUNNING: 0, Reason.STARTING: 1, None: 3}


def summarize(instances: Sequence[Instance]) -> Summary | None:
    """Return whether all run, else why one does not; None while that is about to change.

    Where controllers are all there is, the message has no more than what the instance says.
    """
    shown = foremost(instances)
    reason = shown.reason
    if reason is None:
        return None
    if [each.kind for each in instances] == [InstanceKind.CONTROLLERS]:
        return Summary(reason, shown.message)
    if shown.message:
        return Summary(reason, f"{shown.kind.program}: {shown.message}")
    programs = [each.kind.program for each in instances]
    sentences = {
        Reason.INSTANCE_RUNNING: " and ".join(programs) + (" run" if len(programs) > 1 else " runs"),
        Reason.STARTING: f"{shown.kind.program} is starting",
    }
    return Summary(reason, sentences.get(reason, shown.kind.program))
