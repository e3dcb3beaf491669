"""Reads when clients and users last asked that a control plane wakes or sleeps: annotations, written by anybody."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Self

from kplane.api import ControlPlane
from kplane.api.names import WAKE_REQUESTED_ANNOTATION

__all__ = ["Requests"]

_CLOCKS_DIFFER: Final = timedelta(minutes=1)
"""A time later than this from now is no request: it would count again and again."""


@dataclass(frozen=True, slots=True)
class Requests:
    """What was asked last, and when."""

    wake: datetime | None = None
    refused: tuple[str, ...] = ()
    """Why annotations are not acted on, in sentences."""

    @classmethod
    def of(cls, control_plane: ControlPlane, *, now: datetime) -> Self:
        """Read the annotations of a control plane."""
        refused: list[str] = []

        def read(annotation: str) -> datetime | None:
            value = control_plane.metadata.annotations.get(annotation)
            try:
                time = datetime.fromisoformat(value) if value is not None else None
            except ValueError:
                time = None
            if value is None:
                return None
            if time is None or time.tzinfo is None:
                refused.append(
                    f"annotation {annotation} is not acted on: give it a time with its zone, such as"
                    f" {now.isoformat(timespec='seconds').replace('+00:00', 'Z')}"
                )
                return None
            if time > now + _CLOCKS_DIFFER:
                refused.append(f"annotation {annotation} is not acted on: {value[:40]} is in the future")
                return None
            return time

        return cls(read(WAKE_REQUESTED_ANNOTATION), refused=tuple(refused))
