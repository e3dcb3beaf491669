"""Functions that set conditions with the present time, and the conditions of pauses and of unsupported fields."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from kplane.api import (
    Condition,
    ConditionStatus,
    ResourceModel,
    set_condition,
)
from kplane.api.conditions import LEASES_UNGUARDED, PAUSED
from kplane.api.names import PAUSED_ANNOTATION
from kplane.api.reasons import Reason
from kplane.provider.client.admission import Guard, name_guards

__all__ = [
    "is_paused",
    "with_condition",
    "with_lease_guards",
    "with_pause",
    "with_supported",
    "without_pause",
]


def with_condition(
    conditions: Iterable[Condition],
    *,
    of: ResourceModel,
    type: str = "Ready",  # noqa: A002 - upstream's word
    status: ConditionStatus,
    reason: str,
    message: str,
) -> list[Condition]:
    """Return the conditions with this condition set at the present time, for the generation of the object."""
    return set_condition(
        conditions,
        type=type,
        status=status,
        reason=reason,
        message=message,
        observed_generation=of.metadata.generation,
        now=datetime.now(UTC),
    )


def with_supported(conditions: Iterable[Condition], *, of: ResourceModel, missing: Iterable[str]) -> list[Condition]:
    """Return the conditions with Supported=False if a field has no effect, or without Supported otherwise.

    `missing` are sentences, each about a field without effect.
    """
    message = "; ".join(missing)
    if message:
        return with_condition(
            conditions, of=of, type="Supported", status="False", reason=Reason.NOT_SUPPORTED, message=message
        )
    return [condition for condition in conditions if condition.type != "Supported"]


def with_lease_guards(
    conditions: Iterable[Condition], *, of: ResourceModel, guards: Sequence[Guard]
) -> list[Condition]:
    """Return the conditions with LeasesUnguarded=False if `guards` is not empty, or without LeasesUnguarded otherwise.

    `guards` are the webhooks that admit the Leases of controllers.
    """
    if not guards:
        return [condition for condition in conditions if condition.type != LEASES_UNGUARDED]
    message = (
        f"controllers run by Leases in kube-system, which wait for {name_guards(guards)}: controllers end, and do not"
        " start after a move, if that fails or is slow; exclude namespace kube-system by its namespaceSelector"
    )
    return with_condition(
        conditions, of=of, type=LEASES_UNGUARDED, status="False", reason=Reason.WEBHOOKS_ON_LEASES, message=message
    )


_REASON: Final = "PausedByAnnotation"


def is_paused(of: ResourceModel) -> bool:
    """Return whether the object has the annotation that pauses its reconciliation."""
    return of.metadata.annotations.get(PAUSED_ANNOTATION) == "true"


def with_pause(conditions: Iterable[Condition], *, of: ResourceModel, left: str) -> list[Condition]:
    """Return the conditions with Paused=True. `left` is a clause about the work that is paused."""
    waits = "; its deletion waits as well" if of.deleting else ""
    message = f"annotation {PAUSED_ANNOTATION} is set, so {left}{waits}; remove the annotation to resume"
    return with_condition(conditions, of=of, type=PAUSED, status="True", reason=_REASON, message=message)


def without_pause(conditions: Iterable[Condition]) -> list[Condition]:
    """Return the conditions without Paused."""
    return [condition for condition in conditions if condition.type != PAUSED]
