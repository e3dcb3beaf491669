"""Hibernation: policies for the start and the sleep of API servers, and the status of a sleeping control plane."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AwareDatetime, Field, StringConstraints

from kplane.api.durations import duration_rules, duration_within, parse_duration
from kplane.api.resource import ApiModel

__all__ = ["HibernationReason", "HibernationStatus", "IdleSettings", "StartPolicy"]

_SHORTEST: Final = "2m"
"""Minimum of `after`: the gateway records the use of a control plane once a minute."""
_LONGEST: Final = "8760h"


class StartPolicy(StrEnum):
    """Start policy of an API server: at all times, or only while the control plane is in use."""

    ON_DEMAND = "OnDemand"
    ALWAYS = "Always"


class HibernationReason(StrEnum):
    """Reason of the sleep of a control plane."""

    NOT_USED_YET = "NotUsedYet"
    """The control plane starts on demand, and no client has used it yet."""
    REQUESTED = "Requested"
    """Annotation `controlplane.kplane.dev/sleep-requested` requested the sleep."""
    IDLE = "Idle"
    """No client used the control plane for the period that its class sets."""
    ROOM_NEEDED = "RoomNeeded"
    """Other control planes wait to wake, and this control plane was unused for longest."""


class IdleSettings(ApiModel):
    """Time until idle control planes that start on demand fall asleep."""

    after: Annotated[
        str,
        StringConstraints(min_length=1, max_length=32),
        duration_within(_SHORTEST, _LONGEST),
        duration_rules("spec.virtual.idle.after", shortest=_SHORTEST, longest=_LONGEST),
    ]
    """Time without use after which a control plane falls asleep, such as 10m or 1h30m; from 2m to 8760h. The time
    starts at the last use or the last wake, whichever is later. A requested wake without a later use counts for three
    minutes at most. Without a wake request, a control plane without annotation `controlplane.kplane.dev/last-used`
    stays awake, because its use is unknown.
    """

    @property
    def length(self) -> timedelta:
        """`after` as a timedelta."""
        return parse_duration(self.after)


class HibernationStatus(ApiModel):
    """Sleep of a control plane. While the field is present, the API server may be stopped at any time."""

    since: AwareDatetime
    """The time at which the sleep was decided. A later time in annotation `controlplane.kplane.dev/wake-requested`
    wakes the control plane.
    """
    reason: HibernationReason
    """NotUsedYet: the control plane starts on demand, and no client has used it yet. Requested: annotation
    `controlplane.kplane.dev/sleep-requested` requested the sleep. Idle: no client used the control plane for the period
    that its class sets. RoomNeeded: other control planes wait to wake, and this control plane was unused for longest.
    """
    next_wake: AwareDatetime | None = None
    """The time at which the operator wakes the control plane, because an object inside is due; absent if no object is
    due.
    """
    stuck_namespace: Annotated[str, StringConstraints(max_length=4096)] | None = None
    """The namespace inside whose deletion does not end, and the cause, as of the beginning of the sleep; absent if
    there was none. The same message is in condition Hibernated.
    """
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The metadata.generation at which the control plane fell asleep. Another generation wakes the control plane,
    unless its spec only requests, changes or drops the plan of a move.
    """
    observed_spec_hash: Annotated[str, StringConstraints(max_length=64)] | None = None
    """The SHA-256 of the spec with which the control plane fell asleep, without mode, settings of a mode and
    migration. With the same hash, only the plan of a move has changed.
    """
