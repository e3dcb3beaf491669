"""Hibernation: when the API server of a control plane runs, and what is told of one that sleeps."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import AwareDatetime, Field

from kplane.api.resource import ApiModel

__all__ = ["HibernationReason", "HibernationStatus", "StartPolicy"]


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
    """The metadata.generation that fell asleep. Another one wakes it."""
