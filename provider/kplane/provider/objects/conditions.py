"""Conditions of a status, with the semantics of apimachinery."""

from __future__ import annotations

import datetime as dt
from typing import Final, Literal

from kplane.provider.errors import ProviderError
from kplane.provider.objects.identity import Object

__all__ = ["ConditionStatus", "find_condition", "is_condition_true", "set_condition"]

ConditionStatus = Literal["True", "False", "Unknown"]

_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


def set_condition(
    status: Object,
    type: str,  # noqa: A002 - upstream's word
    value: ConditionStatus | bool,
    *,
    reason: str,
    message: str = "",
    observed_generation: int | None = None,
    now: dt.datetime | None = None,
) -> bool:
    """Set a condition in a status, in place, and return whether anything changed. Upstream's `SetStatusCondition`.

    `lastTransitionTime` changes only with the status of the condition: to `now`, by default the time of the machine.
    `observed_generation` is the `metadata.generation` that the condition refers to; None keeps the existing value.
    Other conditions stay. Raises ProviderError without a reason, which API servers refuse.
    """
    if not reason:
        raise ProviderError(f"condition {type} needs a reason, such as {type}Failed")
    changes: Object = {"status": str(value), "reason": reason, "message": message}
    if observed_generation is not None:
        changes["observedGeneration"] = observed_generation
    condition = find_condition(status, type)
    if condition is None:
        condition = {"type": type}
        conditions = status.get("conditions")
        status["conditions"] = [*(conditions if isinstance(conditions, list) else ()), condition]
    elif changes.items() <= condition.items():
        return False
    if condition.get("status") != changes["status"] or not condition.get("lastTransitionTime"):
        changes["lastTransitionTime"] = (now or dt.datetime.now(dt.UTC)).astimezone(dt.UTC).strftime(_TIME)
    condition |= changes
    return True


def find_condition(status: Object | None, type: str) -> Object | None:  # noqa: A002 - upstream's word
    """Return the condition of a type from a status, not a copy, or None."""
    conditions = (status or {}).get("conditions")
    items = (item for item in (conditions if isinstance(conditions, list) else ()) if isinstance(item, dict))
    return next((item for item in items if item.get("type") == type), None)


def is_condition_true(found: Object | None, type: str, *, current: bool = False) -> bool:  # noqa: A002
    """Tell whether an object has a condition with status True; None is an object that does not exist.

    With `current`, the `observedGeneration` of the condition must equal the generation of the object.
    """
    if found is None:
        return False
    condition = find_condition(found.get("status"), type)
    if condition is None or condition.get("status") != "True":
        return False
    return not current or condition.get("observedGeneration") == found.get("metadata", {}).get("generation")
