"""Operations on objects for reconcilers: owned objects, finalizers, conditions, updates."""

from __future__ import annotations

from kplane.provider.objects.condition import Condition, Conditions
from kplane.provider.objects.conditions import find_condition, is_condition_true, set_condition
from kplane.provider.objects.conflicts import retry_on_conflict
from kplane.provider.objects.finalizers import add_finalizer, remove_finalizer
from kplane.provider.objects.missing import or_none
from kplane.provider.objects.owned import OWNER_LABEL, Applied, apply_owned
from kplane.provider.objects.owners import add_owner, controller_of, is_controlled_by, owner_reference, set_controller
from kplane.provider.objects.updates import Outcome, create_or_update, update_status
from kplane.provider.objects.waiting import wait_for

__all__ = [
    "OWNER_LABEL",
    "Applied",
    "Condition",
    "Conditions",
    "Outcome",
    "add_finalizer",
    "add_owner",
    "apply_owned",
    "controller_of",
    "create_or_update",
    "find_condition",
    "is_condition_true",
    "is_controlled_by",
    "or_none",
    "owner_reference",
    "remove_finalizer",
    "retry_on_conflict",
    "set_condition",
    "set_controller",
    "update_status",
    "wait_for",
]
