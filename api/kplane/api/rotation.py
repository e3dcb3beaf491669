"""Progress of the rotation of a control plane's CAs and ServiceAccount key."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import AwareDatetime, StringConstraints

from kplane.api.resource import ApiModel

__all__ = ["MAX_ROTATION_VALUE", "RotationPhase", "RotationStatus"]

MAX_ROTATION_VALUE: Final = 63
"""Maximum number of characters of the value of annotation `rotate`."""


class RotationPhase(StrEnum):
    """The steps of a rotation, in order."""

    TRUSTING = "Trusting"
    OVERLAPPING = "Overlapping"
    DROPPING = "Dropping"
    DONE = "Done"


class RotationStatus(ApiModel):
    """A rotation of the control plane's CAs and ServiceAccount key."""

    value: Annotated[str, StringConstraints(min_length=1, max_length=MAX_ROTATION_VALUE)]
    """The value of annotation `controlplane.kplane.dev/rotate` that started the rotation."""
    phase: RotationPhase
    """Trusting: the new CAs and key are trusted in addition to the former CAs and key. Overlapping: credentials are
    issued by the new CAs and key, and former credentials stay valid. Dropping: the former CAs and key are removed.
    Done: only the new CAs and key are trusted.
    """
    started_at: AwareDatetime
    """The time at which the rotation started."""
    phase_started_at: AwareDatetime
    """The time at which the current phase started."""
    drop_at: AwareDatetime | None = None
    """The time at which the overlap ends. Credentials of the former CAs and key are invalid from then on."""
