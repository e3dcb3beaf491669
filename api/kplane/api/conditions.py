"""Conditions: what is true of an object, since when and why, in the words of `metav1.Condition`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

from pydantic import AwareDatetime, Field, StringConstraints

from kplane.api.clocks import is_future
from kplane.api.extensions import list_map
from kplane.api.resource import ApiModel

__all__ = [
    "ADDONS_READY",
    "CLASS_FOUND",
    "CONTESTED",
    "DEDICATED_READY",
    "DELETING",
    "HIBERNATED",
    "LEASES_UNGUARDED",
    "MANAGED",
    "MIGRATING",
    "PAUSED",
    "REACHABLE",
    "READY",
    "RUNNING",
    "STORAGE_SUFFICIENT",
    "SUPPORTED",
    "SYNCED",
    "UP_TO_DATE",
    "WAITS_FOR_ROOM",
    "Condition",
    "ConditionStatus",
    "Conditions",
    "find_condition",
    "is_true",
    "set_condition",
]

READY: Final = "Ready"
"""The condition that every kind has."""

RUNNING: Final = "Running"
"""The condition of a registration that says whether its instance runs; mcm writes it, for a dead one the operator."""

DELETING: Final = "Deleting"
"""The condition of a control plane that is True while it is taken down; its reason is where that is."""

MANAGED: Final = "Managed"
"""The condition that records whether kplane runs the API server; decided once, because the removal depends on it."""

MIGRATING: Final = "Migrating"
"""The condition that is there once data were to move: True while they do, and it says why they do not."""

SYNCED: Final = "Synced"
"""The condition that is there, and False, while what is published stays good and the operator cannot reconcile it."""

SUPPORTED: Final = "Supported"
"""The condition that is there, and False, while a field is accepted and has no effect."""

CLASS_FOUND: Final = "ClassFound"
"""The condition that is there, and False, while a control plane follows what is remembered of its class."""

STORAGE_SUFFICIENT: Final = "StorageSufficient"
"""The condition that is there, and False, while a control plane fills 80 % or more of its storage quota."""

UP_TO_DATE: Final = "UpToDate"
"""The condition that is there, and False, while an API server is not what its control plane asks for."""

HIBERNATED: Final = "Hibernated"
"""The condition of a control plane that may sleep: True while it sleeps and no API server runs, False otherwise."""
WAITS_FOR_ROOM: Final = "WaitsForRoom"
"""The reason of that condition while a control plane is to wake, and as many are awake as may be."""

LEASES_UNGUARDED: Final = "LeasesUnguarded"
"""The condition that is there, and False, while a webhook of the tenant judges the Leases of its controllers."""

PAUSED: Final = "Paused"
"""The condition that is there, and True, while an object is paused."""

REACHABLE: Final = "Reachable"
"""The condition of an endpoint that says whether its API server answers."""

CONTESTED: Final = "Contested"
"""The condition of an endpoint that is there, and True, while another field manager owns a condition of kplane's."""

ADDONS_READY: Final = "AddonsReady"
"""The condition that says whether a control plane's add-ons are installed."""

DEDICATED_READY: Final = "DedicatedReady"
"""The condition of a registration with an mcm of its own that says whether that mcm runs."""

_MAX_MESSAGE: Final = 32768
_TYPE_PATTERN: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)

ConditionStatus = Literal["True", "False", "Unknown"]


class Condition(ApiModel):
    """One aspect of the object's state."""

    type: Annotated[str, StringConstraints(max_length=316, pattern=_TYPE_PATTERN)]
    """What the condition is about, such as Ready."""
    status: ConditionStatus
    """True, False or Unknown."""
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The metadata.generation that the condition was set for; an older one than the object's is out of date."""
    last_transition_time: AwareDatetime
    """When the status last changed."""
    reason: Annotated[
        str, StringConstraints(min_length=1, max_length=1024, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    ]
    """Why, in one CamelCase word that programs may act on."""
    message: Annotated[str, StringConstraints(max_length=_MAX_MESSAGE)]
    """Why, in a sentence for people; may be empty."""


Conditions = Annotated[list[Condition], Field(max_length=32), list_map("type")]


def find_condition(conditions: Iterable[Condition], type: str) -> Condition | None:  # noqa: A002 - upstream's word
    """Return the condition of that type, or None where it is not there."""
    return next((condition for condition in conditions if condition.type == type), None)


def is_true(conditions: Iterable[Condition], type: str) -> bool:  # noqa: A002 - upstream's word
    """Tell whether the condition of that type is there and its status is True."""
    condition = find_condition(conditions, type)
    return condition is not None and condition.status == "True"


def set_condition(
    conditions: Iterable[Condition],
    *,
    type: str,  # noqa: A002 - upstream's word
    status: ConditionStatus,
    reason: str,
    message: str,
    observed_generation: int | None,
    now: datetime,
) -> list[Condition]:
    """Return the conditions with one of them set; the order of the others stays.

    `now` (with a time zone; kept to the second, as Kubernetes does) becomes its transition time only where the status
    changes, so setting the same condition again returns an equal list. It also replaces a transition time that a clock
    wrote while it was ahead. A message over 32,768 characters is cut.
    """
    kept = list(conditions)
    previous = find_condition(kept, type)
    unchanged = (
        previous is not None and previous.status == status and not is_future(previous.last_transition_time, now=now)
    )
    condition = Condition(
        type=type,
        status=status,
        reason=reason,
        message=message if len(message) <= _MAX_MESSAGE else f"{message[: _MAX_MESSAGE - 1]}…",
        observed_generation=observed_generation,
        last_transition_time=(
            previous.last_transition_time
            if previous is not None and unchanged
            else now.astimezone(UTC).replace(microsecond=0)
        ),
    )
    if previous is None:
        return [*kept, condition]
    return [condition if other.type == type else other for other in kept]
