"""What is said of an instance in the status of its registration: the condition Running, and status.instance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from kplane.api import RUNNING
from kplane.workloads import Phase

__all__ = ["Essence", "Reason", "Report", "essence_of", "reason_of", "shorten"]

_MESSAGE_LENGTH: Final = 1000

Essence = tuple[str, str, tuple[tuple[str, str], ...] | None]
"""Status and reason of the condition, and the instance; a message alone is no transition."""


class Reason(StrEnum):
    """Why the condition Running is as it is."""

    INSTANCE_RUNNING = "InstanceRunning"
    """The only one with which it is True."""
    STARTING = "Starting"
    UNREADY = "Unready"
    """Its process is there and does not answer its health check."""
    BACKOFF = "Backoff"
    """It ended by itself, and is started again later and later."""
    BAD_FLAG = "BadFlag"
    """As BACKOFF, and so the others down to KILLED: it refused its command line."""
    API_SERVER_NOT_HEALTHY = "APIServerNotHealthy"
    """It waited for its API server for 10 seconds."""
    LEASE_LOST = "LeaseLost"
    OUT_OF_MEMORY = "OutOfMemory"
    KILLED = "Killed"
    API_SERVER_UNREACHABLE = "APIServerUnreachable"
    """It is not run, because its API server does not answer; it is, when that does."""
    FOREIGN_CONTROLLER_MANAGER = "ForeignControllerManager"
    """It is not run, because another one works on the same control plane."""
    CANNOT_START = "CannotStart"
    CANNOT_END = "StopFailed"
    ENDED = "Ended"
    """Nothing of it is left."""


_SENTENCES: Final = {
    Reason.INSTANCE_RUNNING: "kube-controller-manager runs",
    Reason.STARTING: "kube-controller-manager is starting",
    Reason.ENDED: "nothing of it runs any more",
}

_REASONS: Final = {
    Phase.ABSENT: Reason.STARTING,
    Phase.STARTING: Reason.STARTING,
    Phase.READY: Reason.INSTANCE_RUNNING,
    Phase.UNREADY: Reason.UNREADY,
    Phase.BACKOFF: Reason.BACKOFF,
    Phase.ENDED: Reason.BACKOFF,
}


def reason_of(phase: Phase, *, exited: Reason | None) -> Reason | None:
    """Tell what a phase of its component means for an instance; None where it means nothing new.

    `exited` says why it ended by itself, where it was not ready since: its starts are no transitions then, because
    there is one after each of its ends.
    """
    if exited is not None and phase in {Phase.STARTING, Phase.BACKOFF, Phase.ENDED}:
        return exited
    return _REASONS.get(phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What is to be said of the instance of one registration."""

    reason: Reason
    message: str = ""
    """Empty: the sentence that goes with the reason."""
    instance: Mapping[str, str] | None = None
    """`status.instance`; None where there is none, and none is about to start."""

    @property
    def status(self) -> str:
        """Of the condition."""
        return "True" if self.reason is Reason.INSTANCE_RUNNING else "False"

    @property
    def sentence(self) -> str:
        """Message of the condition."""
        return shorten(self.message or _SENTENCES.get(self.reason, ""), length=_MESSAGE_LENGTH)

    @property
    def essence(self) -> Essence:
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


def essence_of(registration: Mapping[str, Any]) -> tuple[Essence, str] | None:
    """Return what the status of a registration says of its instance, and the message; None where it says nothing."""
    condition, instance = _condition(registration), (registration.get("status") or {}).get("instance")
    if not condition and instance is None:
        return None
    essence = str(condition.get("status", "")), str(condition.get("reason", "")), _pairs(instance)
    return essence, str(condition.get("message", ""))


def _condition(registration: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = (registration.get("status") or {}).get("conditions") or ()
    return next((found for found in conditions if found.get("type") == RUNNING), {})


def _pairs(instance: Mapping[str, str] | None) -> tuple[tuple[str, str], ...] | None:
    return tuple(sorted(instance.items())) if instance is not None else None
