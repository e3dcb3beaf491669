"""Migration of a control plane's data from a home to another home, while the control plane is in use."""

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
    """Settings of migrations.

    A change of spec.mode, spec.dedicated.volume or spec.virtual.dataStoreRef starts a migration.
    """

    plan: bool = False
    """Whether the operator only writes an estimate and the obstacles of a migration into `status.migration.plan`. No
    data move until this is false.
    """
    max_hold: Annotated[
        str,
        StringConstraints(min_length=1, max_length=32),
        duration_within(*_HOLD),
        duration_rules("spec.migration.maxHold", shortest=_HOLD[0], longest=_HOLD[1]),
    ] = "5s"
    """Maximum time that writes wait at the gateway while the address changes, such as 5s; from 0.1s to 30s. After that
    time, writes continue at the former home, and the operator retries.
    """
    rollback_window: Annotated[
        str,
        StringConstraints(min_length=1, max_length=32),
        duration_within(*_WINDOW),
        duration_rules("spec.migration.rollbackWindow", shortest=_WINDOW[0], longest=_WINDOW[1]),
    ] = "10m"
    """The time for which the former home keeps its data after the change of the address, such as 10m; up to 720h. Until
    then, a migration back uses that home again and writes all keys again.
    """

    @property
    def hold(self) -> timedelta:
        """`max_hold` as a timedelta."""
        return parse_duration(self.max_hold)

    @property
    def window(self) -> timedelta:
        """`rollback_window` as a timedelta."""
        return parse_duration(self.rollback_window)


class MigrationStep(StrEnum):
    """The steps of a migration, in order."""

    PREPARING = "Preparing"
    """The etcd of the new home starts."""
    COPYING = "Copying"
    """The data are copied. From this step on, each change is copied too."""
    STARTING = "Starting"
    """The API server of the new home starts, and is not allowed to write."""
    ENDING_CONTROLLERS = "EndingControllers"
    """Registrations are not ready, and instances stop."""
    CUTTING = "Cutting"
    """Writes wait at the gateway, and the former home is not allowed to write any more."""
    RETAINING = "Retaining"
    """The control plane uses the new home. The former home keeps its data for a migration back."""
    COMPLETED = "Completed"
    """The former home is deleted."""

    @property
    def is_cut(self) -> bool:
        """Whether the control plane uses the new home."""
        return self in {MigrationStep.RETAINING, MigrationStep.COMPLETED}


class MigrationBlocker(ApiModel):
    """An obstacle to a migration."""

    reason: Annotated[str, StringConstraints(max_length=64)]
    """The kind of the obstacle, as a CamelCase word."""
    message: Annotated[str, StringConstraints(max_length=1024)]
    """Description and remedy of the obstacle."""


class MigrationPlan(ApiModel):
    """Estimate and obstacles of a migration."""

    keys: Annotated[int, Field(ge=0)]
    """The number of keys to copy."""
    bytes: Annotated[int, Field(ge=0)]
    """The number of bytes to copy."""
    seconds: Annotated[int, Field(ge=0)]
    """Estimated number of seconds until the new home is in use."""
    hold_milliseconds: Annotated[int, Field(ge=0)] | None = None
    """Estimated number of milliseconds that writes wait."""
    blockers: Annotated[list[MigrationBlocker], Field(max_length=16)] = Field(default_factory=list)
    """Obstacles to the migration. The operator changes no data while the list is not empty."""


class MigrationStatus(ApiModel):
    """The latest migration."""

    source: Annotated[Home, Field(alias="from")]
    """The former home."""
    target: Annotated[Home, Field(alias="to")]
    """The new home."""
    step: MigrationStep | None = None
    """The current step; absent while the migration is only planned, or blocked."""
    started_time: AwareDatetime | None = None
    """The time at which the migration started."""
    begins_at: Annotated[int, Field(ge=1)] | None = None
    """The revision that the etcd of the new home exceeds, so that no client takes an old version for a new version. The
    history before it is removed. A list that started in the former home gets 410, and not a part of the data.
    """
    returns: bool = False
    """Whether the new home is the former home of the previous migration, with the data that it had."""
    keys: Annotated[int, Field(ge=0)] = 0
    """The number of keys that were written in the new home."""
    bytes: Annotated[int, Field(ge=0)] = 0
    """The number of bytes of these keys and their values."""
    percent: Annotated[int, Field(ge=0, le=100)] = 0
    """The share of the keys that is copied, in percent."""
    lag_milliseconds: Annotated[int, Field(ge=0)] | None = None
    """The age of the oldest change that is missing in the new home, in milliseconds."""
    attempts: Annotated[int, Field(ge=0)] = 0
    """The number of attempts to change the address."""
    hold_milliseconds: Annotated[int, Field(ge=0)] | None = None
    """The number of milliseconds that writes waited."""
    sha256: Annotated[str, StringConstraints(max_length=64)] | None = None
    """The SHA-256 of all keys and values, which was equal in both homes when the address changed."""
    cut_time: AwareDatetime | None = None
    """The time at which the address changed."""
    completed_time: AwareDatetime | None = None
    """The time at which the former home was deleted."""
    message: Annotated[str, StringConstraints(max_length=1024)] | None = None
    """Progress of the current step, or its obstacle."""
    plan: MigrationPlan | None = None
    """Estimate and obstacles of the migration."""
