"""Conditions of objects, in the form of `metav1.Condition`, and the condition types of all kinds."""

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
"""Condition type of every kind."""

RUNNING: Final = "Running"
"""Condition type of a registration: whether its instance runs. mcm writes it, or the operator if that mcm is dead."""

DELETING: Final = "Deleting"
"""Condition type of a control plane: True during its deletion. The reason is the current step."""

MANAGED: Final = "Managed"
"""Condition type of a control plane: whether kplane runs the API server. Decided once, because deletion depends on it.
"""

MIGRATING: Final = "Migrating"
"""Condition type: present from the first request to move data on. True during the move, else with the obstacle."""

SYNCED: Final = "Synced"
"""Condition type: present and False while the operator cannot reconcile an object whose published values stay valid."""

SUPPORTED: Final = "Supported"
"""Condition type: present and False while a field is accepted without effect."""

CLASS_FOUND: Final = "ClassFound"
"""Condition type: present and False while a control plane follows the recorded copy of its class."""

STORAGE_SUFFICIENT: Final = "StorageSufficient"
"""Condition type: present and False while a control plane uses 80 % or more of its storage quota."""

UP_TO_DATE: Final = "UpToDate"
"""Condition type: present and False while an API server differs from the spec of its control plane."""

HIBERNATED: Final = "Hibernated"
"""Condition type of a control plane that may sleep: True while it sleeps and no API server runs, False otherwise."""
WAITS_FOR_ROOM: Final = "WaitsForRoom"
"""Reason of Hibernated while a control plane waits to wake, because the limit of awake control planes is reached."""

LEASES_UNGUARDED: Final = "LeasesUnguarded"
"""Condition type: present and False while a webhook of the tenant intercepts the Leases of its controllers."""

PAUSED: Final = "Paused"
"""Condition type: present and True while an object is paused."""

REACHABLE: Final = "Reachable"
"""Condition type of an endpoint: whether its API server responds."""

CONTESTED: Final = "Contested"
"""Condition type of an endpoint: present and True while another field manager owns a condition of kplane."""

ADDONS_READY: Final = "AddonsReady"
"""Condition type of a control plane: whether its add-ons are installed."""

DEDICATED_READY: Final = "DedicatedReady"
"""Condition type of a registration with a dedicated mcm: whether that mcm runs."""

_MAX_MESSAGE: Final = 32768
_TYPE_PATTERN: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)

ConditionStatus = Literal["True", "False", "Unknown"]


class Condition(ApiModel):
    """An aspect of the state of an object."""

    type: Annotated[str, StringConstraints(max_length=316, pattern=_TYPE_PATTERN)]
    """Type of the condition, such as Ready."""
    status: ConditionStatus
    """True, False or Unknown."""
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The metadata.generation for which the condition was set. The condition is out of date if the object has a newer
    generation.
    """
    last_transition_time: AwareDatetime
    """The last time the condition changed from one status to another."""
    reason: Annotated[
        str, StringConstraints(min_length=1, max_length=1024, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    ]
    """The reason of the last transition, as a CamelCase word for programs."""
    message: Annotated[str, StringConstraints(max_length=_MAX_MESSAGE)]
    """A message for people about the transition; may be empty."""


Conditions = Annotated[list[Condition], Field(max_length=32), list_map("type")]


def find_condition(conditions: Iterable[Condition], type: str) -> Condition | None:  # noqa: A002 - upstream's word
    """Return the condition of a type, or None if there is none."""
    return next((condition for condition in conditions if condition.type == type), None)


def is_true(conditions: Iterable[Condition], type: str) -> bool:  # noqa: A002 - upstream's word
    """Return whether there is a condition of a type with status True."""
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
    """Return the conditions with the given condition set; the order of the others stays.

    `now` has a time zone, and is truncated to the second, as Kubernetes does. It becomes the transition time only if
    the status changes, so setting an equal condition again returns an equal list. It also replaces a transition time in
    the future, which a clock wrote while it was ahead. A message over 32,768 characters is cut.
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
