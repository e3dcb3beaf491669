"""How far the exchange of a control plane's CAs and ServiceAccount key has come."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import AwareDatetime, StringConstraints

from kplane.api.resource import ApiModel

__all__ = ["MAX_ROTATION_VALUE", "RotationPhase", "RotationStatus"]

MAX_ROTATION_VALUE: Final = 63
"""Characters that the value of the annotation `rotate` may have."""


class RotationPhase(StrEnum):
    """The steps of an exchange, in their order."""

    TRUSTING = "Trusting"
    OVERLAPPING = "Overlapping"
    DROPPING = "Dropping"
    DONE = "Done"


class RotationStatus(ApiModel):
    """An exchange of the control plane's CAs and ServiceAccount key."""

    value: Annotated[str, StringConstraints(min_length=1, max_length=MAX_ROTATION_VALUE)]
    """The value of the annotation `controlplane.kplane.dev/rotate` that began it."""
    phase: RotationPhase
    """Trusting: the new ones are trusted next to the old ones. Overlapping: credentials are issued by the new ones, and
    those of the old ones are good still. Dropping: the old ones are taken out. Done: only the new ones count.
    """
    started_at: AwareDatetime
    """When it began."""
    phase_started_at: AwareDatetime
    """When the present phase began."""
    drop_at: AwareDatetime | None = None
    """When the overlap ends, and with it what the old ones issued."""
