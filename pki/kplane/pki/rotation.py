"""The exchange of a control plane's CAs and ServiceAccount key, as a pure function of what was done so far.

Trusting: all programs trust the new ones beside the old ones, which still issue everything. Overlapping: the new ones
issue clients' credentials. Credentials of the old ones are still good. The API server still serves with a certificate
of the old CA, which clients with an older kubeconfig know as well. Dropping: the API server serves with a certificate
of the new CA, and rejects what the old ones issued. Done: only the new ones are trusted.

A kubeconfig is good as long as its credential. A client with a good one at the end of the overlap fetched it after the
new CA was added. So one overlap is enough for both directions of trust.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Self, TypeGuard

from kplane.api import MAX_ROTATION_VALUE, RotationPhase
from kplane.api.clocks import is_future

__all__ = [
    "OVERLAP",
    "Rotation",
    "RotationWish",
    "begun_with",
    "is_wanted",
    "next_rotation",
]

OVERLAP: Final = timedelta(hours=24, minutes=5)
"""The least overlap: the life of what kplane issues, and some minutes by which clocks may differ."""


@dataclass(frozen=True, slots=True)
class RotationWish:
    """What the control plane's annotations ask for."""

    value: str | None
    """Begin, unless this value was handled already."""
    finish: str | None = None
    """End the overlap of this value at once."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """How far an exchange has come."""

    value: str
    """What began it; a value is handled once."""
    phase: RotationPhase
    started_at: datetime
    phase_started_at: datetime
    drop_at: datetime | None = None
    """When the overlap ends by itself; None before there is one."""

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Read what `to_json` wrote. Raises KeyError, TypeError or ValueError where it is something else."""
        drop_at = document.get("dropAt")
        return cls(
            value=str(document["value"]),
            phase=RotationPhase(document["phase"]),
            started_at=datetime.fromisoformat(document["startedAt"]),
            phase_started_at=datetime.fromisoformat(document["phaseStartedAt"]),
            drop_at=datetime.fromisoformat(drop_at) if drop_at is not None else None,
        )

    def to_json(self) -> dict[str, str]:
        """Return it as a document."""
        document = {
            "value": self.value,
            "phase": self.phase.value,
            "startedAt": self.started_at.isoformat(),
            "phaseStartedAt": self.phase_started_at.isoformat(),
        }
        return document | ({"dropAt": self.drop_at.isoformat()} if self.drop_at is not None else {})


def begun_with(value: str | None, *, now: datetime) -> Rotation | None:
    """Return the record of keys that are made just now: nothing is to be exchanged for a value that is there before."""
    if not _is_value(value):
        return None
    return Rotation(value, RotationPhase.DONE, started_at=_second(now), phase_started_at=_second(now))


def is_wanted(rotation: Rotation | None, *, wish: RotationWish) -> bool:
    """Tell whether an exchange is under way, or is to begin."""
    if rotation is None or rotation.phase is RotationPhase.DONE:
        return _is_value(wish.value) and (rotation is None or wish.value != rotation.value)
    return True


def next_rotation(
    rotation: Rotation | None, *, wish: RotationWish, settled: bool, now: datetime, outlives: datetime | None = None
) -> Rotation | None:
    """Return the next step; None while there is none.

    `settled` says that what the present phase asks for is so everywhere: every API server that runs has it, and what is
    published is of it. `outlives` is the end of the life of what is published, as far as it is known: the overlap
    is at least as long, if nobody ends it.
    """
    if not settled:
        return None
    now = _second(now)
    if rotation is None or rotation.phase is RotationPhase.DONE:
        handled = rotation.value if rotation is not None else None
        if not _is_value(wish.value) or wish.value == handled:
            return None
        return Rotation(wish.value, RotationPhase.TRUSTING, started_at=now, phase_started_at=now)
    match rotation.phase:
        case RotationPhase.TRUSTING:
            return _overlapping(rotation, now=now, outlives=outlives)
        case RotationPhase.OVERLAPPING:
            over = rotation.drop_at is None or now >= rotation.drop_at
            if not over and wish.finish != rotation.value:
                # A clock that was ahead began the overlap: begin it again, instead of extending it by as much.
                begins_again = is_future(rotation.phase_started_at, now=now)
                return _overlapping(rotation, now=now, outlives=outlives) if begins_again else None
            return replace(rotation, phase=RotationPhase.DROPPING, phase_started_at=now)
        case RotationPhase.DROPPING:
            return replace(rotation, phase=RotationPhase.DONE, phase_started_at=now)


def _overlapping(rotation: Rotation, *, now: datetime, outlives: datetime | None) -> Rotation:
    drop_at = max(now + OVERLAP, _second(outlives) if outlives is not None else now)
    return replace(rotation, phase=RotationPhase.OVERLAPPING, phase_started_at=now, drop_at=drop_at)


def _is_value(value: str | None) -> TypeGuard[str]:
    return value is not None and 0 < len(value) <= MAX_ROTATION_VALUE


def _second(time: datetime) -> datetime:
    # As Kubernetes writes times: what is published is what is kept.
    return time.replace(microsecond=0)
