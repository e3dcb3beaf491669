"""Rotation of a control plane's CAs and ServiceAccount key, as a pure function of the steps so far.

1. Trusting: all programs trust both old and new authorities. The old authorities still issue all credentials.
2. Overlapping: the new authorities issue clients' credentials. Old credentials remain valid. The API server still
   serves with a certificate of the old CA, because clients with an older kubeconfig know this CA as well.
3. Dropping: the API server serves with a certificate of the new CA, and rejects credentials of the old authorities.
4. Done: programs trust only the new authorities.

A kubeconfig is valid for as long as its credential. A client with a valid credential at the end of the overlap fetched
its kubeconfig after the new CA was added. A single overlap therefore covers both directions of trust.
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
"""Minimum overlap: the lifetime of kplane's credentials, plus some minutes of clock difference."""


@dataclass(frozen=True, slots=True)
class RotationWish:
    """Rotation request in the annotations of a control plane."""

    value: str | None
    """Begin a rotation, unless this value was handled already."""
    finish: str | None = None
    """End the overlap of the rotation with this value at once."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """Progress of a rotation."""

    value: str
    """Value of the request that began the rotation; each value is handled once."""
    phase: RotationPhase
    started_at: datetime
    phase_started_at: datetime
    drop_at: datetime | None = None
    """End of the overlap; None before the overlap begins."""

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Read the result of `to_json`. Raises AttributeError, KeyError, TypeError or ValueError for other input."""
        drop_at = document.get("dropAt")
        return cls(
            value=str(document["value"]),
            phase=RotationPhase(document["phase"]),
            started_at=datetime.fromisoformat(document["startedAt"]),
            phase_started_at=datetime.fromisoformat(document["phaseStartedAt"]),
            drop_at=datetime.fromisoformat(drop_at) if drop_at is not None else None,
        )

    def to_json(self) -> dict[str, str]:
        """Return the rotation as a JSON document."""
        document = {
            "value": self.value,
            "phase": self.phase.value,
            "startedAt": self.started_at.isoformat(),
            "phaseStartedAt": self.phase_started_at.isoformat(),
        }
        return document | ({"dropAt": self.drop_at.isoformat()} if self.drop_at is not None else {})


def begun_with(value: str | None, *, now: datetime) -> Rotation | None:
    """Return the record for keys that were just created: a value that is already requested starts no rotation."""
    if not _is_value(value):
        return None
    return Rotation(value, RotationPhase.DONE, started_at=_second(now), phase_started_at=_second(now))


def is_wanted(rotation: Rotation | None, *, wish: RotationWish) -> bool:
    """Return whether a rotation is in progress, or is requested."""
    if rotation is None or rotation.phase is RotationPhase.DONE:
        return _is_value(wish.value) and (rotation is None or wish.value != rotation.value)
    return True


def next_rotation(
    rotation: Rotation | None, *, wish: RotationWish, settled: bool, now: datetime, outlives: datetime | None = None
) -> Rotation | None:
    """Return the rotation after its next step; None if no step is due.

    `settled` means that the present phase is in effect everywhere: in each running API server, and in all published
    credentials. `outlives` is the expiry of the published credentials, if known. The overlap lasts at least until then,
    unless `wish.finish` ends it.
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
                # The overlap began on a clock that was ahead. Restart the overlap instead of extending it by as much.
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
    # Kubernetes writes times in seconds, so published and stored times are equal.
    return time.replace(microsecond=0)
