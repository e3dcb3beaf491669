"""Requests to wake a control plane or to put it to sleep, read from annotations that any client or user may write."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Self

from kplane.api import ControlPlane, StartPolicy
from kplane.api.clocks import is_future, read_time
from kplane.api.names import LAST_USED_ANNOTATION, SLEEP_REQUESTED_ANNOTATION, WAKE_REQUESTED_ANNOTATION

__all__ = ["Requests"]


@dataclass(frozen=True, slots=True)
class Requests:
    """Times of the latest requests and of the latest use of a control plane."""

    wake: datetime | None = None
    sleep: datetime | None = None
    used: datetime | None = None
    refused: tuple[str, ...] = ()
    """Sentences that explain why annotations are ignored."""

    @classmethod
    def of(cls, control_plane: ControlPlane, *, start: StartPolicy, now: datetime) -> Self:
        """Return the requests in the annotations of a control plane."""
        refused: list[str] = []

        def read(annotation: str) -> datetime | None:
            value = control_plane.metadata.annotations.get(annotation)
            if value is None:
                return None
            time = read_time(value)
            if time is None:
                example = now.isoformat(timespec="seconds").replace("+00:00", "Z")
                problem = f"give it a time with its zone, such as {example}"
            elif is_future(time, now=now):
                # A request in the future would take effect again and again.
                problem = f"{value[:40]} is in the future"
            else:
                return time
            refused.append(f"annotation {annotation} is not acted on: {problem}")
            return None

        wake, sleep, used = map(read, (WAKE_REQUESTED_ANNOTATION, SLEEP_REQUESTED_ANNOTATION, LAST_USED_ANNOTATION))
        if sleep is not None and start is StartPolicy.ALWAYS:
            refused.append(
                f"annotation {SLEEP_REQUESTED_ANNOTATION} is not acted on: only a control plane of mode Virtual whose"
                " spec.virtual.start is OnDemand sleeps"
            )
        return cls(wake, sleep, used, tuple(refused))
