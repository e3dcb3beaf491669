"""An object that its owner has paused is left as it is, as Cluster API does with `cluster.x-k8s.io/paused`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kplane.api import Condition, ResourceModel
from kplane.api.names import PAUSED_ANNOTATION
from kplane.controlplane_operator.status.writer import with_condition

__all__ = ["PAUSED", "is_paused", "with_pause", "without_pause"]

PAUSED: Final = "Paused"
"""The condition that is there, and True, while an object is paused."""

_REASON: Final = "PausedByAnnotation"


def is_paused(of: ResourceModel) -> bool:
    """Tell whether the object carries the annotation that has it left alone."""
    return of.metadata.annotations.get(PAUSED_ANNOTATION) == "true"


def with_pause(conditions: Iterable[Condition], *, of: ResourceModel, left: str) -> list[Condition]:
    """Return the conditions with Paused=True; `left` says in a clause what is not done meanwhile."""
    waits = "; its deletion waits as well" if of.deleting else ""
    message = f"annotation {PAUSED_ANNOTATION} is set, so {left}{waits}; remove the annotation to go on"
    return with_condition(conditions, of=of, type=PAUSED, status="True", reason=_REASON, message=message)


def without_pause(conditions: Iterable[Condition]) -> list[Condition]:
    """Return the conditions of an object that is not paused any more, or never was."""
    return [condition for condition in conditions if condition.type != PAUSED]
