"""The move of a control plane's data from one home to another, while it is in use."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AwareDatetime, Field, StringConstraints

from kplane.api.durations import duration_rules, duration_within, parse_duration
from kplane.api.home import Home
from kplane.api.resource import ApiModel

__all__ = [
    "MigrationBlocker",
    "MigrationPlan",
    "MigrationSpec",
    "MigrationStatus",
    "MigrationStep",
]

_HOLD: Final = ("0.1s", "30s")
_WINDOW: Final = ("0s", "720h")


class MigrationSpec(ApiModel):
    """How a migration goes that a change of spec.mode, spec.dedicated.volume or spec.virtual.dataStoreRef begins."""

    plan: bool = False
    """Only write into `status.migration.plan` what a migration would take, and what stands in its way. Nothing moves
    until this is false.
    """
    max_hold: Annotated[
        str,
        StringConstraints(min_length=1, max_length=32),
        duration_within(*_HOLD),
        duration_rules("spec.migration.maxHold", shortest=_HOLD[0], longest=_HOLD[1]),
    ] = "5s"
    """How long writes may wait at the gateway while the address changes, such as 5s; from 0.1s to 30s. Where that is
    too short, they continue at the former home, and the operator retries.
    """
    rollback_window: Annotated[
        str,
        StringConstraints(min_length=1, max_length=32),
        duration_within(*_WINDOW),
        duration_rules("spec.migration.rollbackWindow", shortest=_WINDOW[0], longest=_WINDOW[1]),
    ] = "10m"
    """How long the former home keeps its data after the change of the address, such as 10m; up to 720h. Until then a
    migration back uses that home again, with all keys written anew.
    """

    @property
    def hold(self) -> timedelta:
        """`max_hold` as what it stands for."""
        return parse_duration(self.max_hold)

    @property
    def window(self) -> timedelta:
        """`rollback_window` as what it stands for."""
        return parse_duration(self.rollback_window)


class MigrationStep(StrEnum):
    """The steps of a migration, in their order."""

    PREPARING = "Preparing"
    """The etcd of the new home starts."""
    COPYING = "Copying"
    """The data are copied. From here on, each change follows."""
    STARTING = "Starting"
    """The API server of the new home starts; it may not write."""
    ENDING_CONTROLLERS = "EndingControllers"
    """Registrations are not ready, and instances end."""
    CUTTING = "Cutting"
    """Writes wait at the gateway, and the former home may not write any more."""
    RETAINING = "Retaining"
    """The control plane lives in the new home. The former one keeps its data for a migration back."""
    COMPLETED = "Completed"
    """Of the former home nothing is left."""

    @property
    def is_cut(self) -> bool:
        """Whether the control plane lives in the new home."""
        return self in {MigrationStep.RETAINING, MigrationStep.COMPLETED}


class MigrationBlocker(ApiModel):
    """Something that stands in the way of a migration."""

    reason: Annotated[str, StringConstraints(max_length=64)]
    """What it is, in one word."""
    message: Annotated[str, StringConstraints(max_length=1024)]
    """What it is, and what to do about it."""


class MigrationPlan(ApiModel):
    """What a migration takes."""

    keys: Annotated[int, Field(ge=0)]
    """How many keys are copied."""
    bytes: Annotated[int, Field(ge=0)]
    """How many bytes they have."""
    seconds: Annotated[int, Field(ge=0)]
    """How long it may take until the new home is in use."""
    hold_milliseconds: Annotated[int, Field(ge=0)] | None = None
    """About how long writes wait meanwhile."""
    blockers: Annotated[list[MigrationBlocker], Field(max_length=16)] = Field(default_factory=list)
    """What stands in its way. While there is one, nothing is changed."""


class MigrationStatus(ApiModel):
    """The latest migration."""

    source: Annotated[Home, Field(alias="from")]
    """The former home."""
    target: Annotated[Home, Field(alias="to")]
    """The new home."""
    step: MigrationStep | None = None
    """Where it is; absent while it is only planned, or blocked."""
    started_time: AwareDatetime | None = None
    """When it began."""
    begins_at: Annotated[int, Field(ge=1)] | None = None
    """The revision that the etcd of the new home exceeds, so that no client takes an old version for a new one. The
    history before it is removed, so that a list that began in the former home gets 410 instead of a part of the data.
    """
    returns: bool = False
    """The new home is the former one, with the data that it had."""
    keys: Annotated[int, Field(ge=0)] = 0
    """How many keys were written in the new home."""
    bytes: Annotated[int, Field(ge=0)] = 0
    """How many bytes these have."""
    percent: Annotated[int, Field(ge=0, le=100)] = 0
    """How much of the keys is copied."""
    lag_milliseconds: Annotated[int, Field(ge=0)] | None = None
    """For how long there have been changes that the new home does not have yet."""
    attempts: Annotated[int, Field(ge=0)] = 0
    """How often the address was about to change."""
    hold_milliseconds: Annotated[int, Field(ge=0)] | None = None
    """How long writes waited."""
    sha256: Annotated[str, StringConstraints(max_length=64)] | None = None
    """The SHA-256 of all keys and values, which was the same in both homes when the address changed."""
    cut_time: AwareDatetime | None = None
    """When the address changed."""
    completed_time: AwareDatetime | None = None
    """When the former home was gone."""
    message: Annotated[str, StringConstraints(max_length=1024)] | None = None
    """What is done, or waited for."""
    plan: MigrationPlan | None = None
    """What it takes."""
