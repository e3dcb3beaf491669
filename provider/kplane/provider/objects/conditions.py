"""Conditions of a status, with the semantics of apimachinery."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar, overload

from kplane.provider.errors import ProviderError
from kplane.provider.objects.condition import ConditionStatus
from kplane.provider.objects.identity import Object
from kplane.provider.objects.view import fields_of, put_field, view_of

__all__ = ["HasConditions", "find_condition", "is_condition_true", "set_condition"]

C_co = TypeVar("C_co", covariant=True)

_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


class HasConditions(Protocol[C_co]):
    """A status of a class with conditions, such as `Condition`."""

    @property
    def conditions(self) -> Sequence[C_co] | None:
        """Conditions of the object."""


def set_condition(
    status: Object | HasConditions[Any],
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

    A status of a class needs an attribute `conditions`, such as `conditions: Conditions = []`. If the class is frozen,
    the list itself changes. Raises ProviderError if its conditions lack a field of `Condition`.
    """
    if not reason:
        raise ProviderError(f"condition {type} needs a reason, such as {type}Failed")
    fields = fields_of(status)
    changes: Object = {"status": str(value), "reason": reason, "message": message}
    if observed_generation is not None:
        changes["observedGeneration"] = observed_generation
    conditions = _items(fields.get("conditions"))
    condition = _of_type(type, conditions)
    if condition is None:
        condition = {"type": type}
        fields["conditions"] = [*conditions, condition]
    elif changes.items() <= condition.items():
        return False
    if condition.get("status") != changes["status"] or not condition.get("lastTransitionTime"):
        changes["lastTransitionTime"] = (now or dt.datetime.now(dt.UTC)).astimezone(dt.UTC).strftime(_TIME)
    condition |= changes
    put_field(status, "conditions", fields)
    return True


@overload
def find_condition(status: Object | None, type: str) -> Object | None: ...
@overload
def find_condition(status: HasConditions[C_co] | None, type: str) -> C_co | None: ...
def find_condition(status: Object | HasConditions[Any] | None, type: str) -> Any:  # noqa: A002 - upstream's word
    """Return the condition of a type from a status, not a copy, or None. It is a dict, or an instance of a class."""
    if status is None:
        return None
    fields = fields_of(status)
    for index, condition in enumerate(_items(fields.get("conditions"))):
        if condition.get("type") == type:
            return condition if isinstance(status, dict) else (status.conditions or ())[index]
    return None


def is_condition_true(found: object | None, type: str, *, current: bool = False) -> bool:  # noqa: A002
    """Tell whether an object has a condition with status True; None is an object that does not exist.

    With `current`, the `observedGeneration` of the condition must equal the generation of the object.
    """
    if found is None:
        return False
    view = view_of(found)
    condition = _of_type(type, _items(view.read("status", "conditions")))
    if condition is None or condition.get("status") != "True":
        return False
    return not current or condition.get("observedGeneration") == view.read("metadata", "generation")


def _items(conditions: object) -> list[Object]:
    return [item for item in conditions if isinstance(item, dict)] if isinstance(conditions, list) else []


def _of_type(name: str, conditions: Sequence[Object]) -> Object | None:
    return next((condition for condition in conditions if condition.get("type") == name), None)
