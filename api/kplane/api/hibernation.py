"""Hibernation: when the API server of a control plane runs, and what is told of one that sleeps."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AwareDatetime, Field, StringConstraints

from kplane.api.durations import duration_rules, duration_within, parse_duration
from kplane.api.resource import ApiModel

__all__ = ["HibernationReason", "HibernationStatus", "IdleSettings", "StartPolicy"]

_SHORTEST: Final = "2m"
"""The gateway says once a minute that a control plane is in use."""
_LONGEST: Final = "8760h"


class StartPolicy(StrEnum):
    """When an API server runs: at all times, or only while the control plane is in use."""

    ON_DEMAND = "OnDemand"
    ALWAYS = "Always"


class HibernationReason(StrEnum):
    """Why a control plane sleeps."""

    NOT_USED_YET = "NotUsedYet"
    """It starts on demand, and no client has asked for it yet."""
    REQUESTED = "Requested"
    """Annotation `controlplane.kplane.dev/sleep-requested` asked for it."""
    IDLE = "Idle"
    """No client used it for as long as its class says."""
    ROOM_NEEDED = "RoomNeeded"
    """Others wait to wake, and no client has used any other one for longer."""


class IdleSettings(ApiModel):
    """When control planes that start on demand fall asleep again."""

    after: Annotated[
        str,
        StringConstraints(min_length=1, max_length=32),
        duration_within(_SHORTEST, _LONGEST),
        duration_rules("spec.virtual.idle.after", shortest=_SHORTEST, longest=_LONGEST),
    ]
    """How long a control plane stays awake that no client uses, such as 10m or 1h30m; from 2m to 8760h. It counts from
    the last use or the last wake, whichever is later. A control plane without annotation
    `controlplane.kplane.dev/last-used` stays awake, because its use is not known.
    """

    @property
    def length(self) -> timedelta:
        """`after` as what it stands for."""
        return parse_duration(self.after)


class HibernationStatus(ApiModel):
    """The sleep of a control plane. While this is there, no API server is to be relied on."""

    since: AwareDatetime
    """When the sleep was decided. A later time in the annotation `controlplane.kplane.dev/wake-requested` wakes the
    control plane.
    """
    reason: HibernationReason
    """NotUsedYet: it starts on demand, and no client has asked for it yet. Requested: the annotation
    `controlplane.kplane.dev/sleep-requested` asked for it. Idle: no client used it for as long as its class says.
    """
    next_wake: AwareDatetime | None = None
    """When the operator wakes it by itself, because something inside is due; absent if nothing is."""
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The metadata.generation that fell asleep. Another one wakes it, unless it only asks for a plan of a move."""
