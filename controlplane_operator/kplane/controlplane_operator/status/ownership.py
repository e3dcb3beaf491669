"""Detection of the parts of a status that other field managers own, from the managedFields of the object.

The API server tracks the owner of each field. A manager that updates a condition owns only the fields that it changed.
So a condition is foreign as soon as its status, reason or message is foreign.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kplane.controlplane_operator.watch.cache import Object

__all__ = ["ForeignParts", "foreign_parts"]

_TELLING: Final = ("status", "reason", "message")
_REQUIRED: Final = (*_TELLING, "lastTransitionTime")
"""Fields without which the API server refuses a condition."""


@dataclass(frozen=True, slots=True)
class ForeignParts:
    """Parts of a status that belong to other field managers."""

    fields: frozenset[str] = frozenset()
    """Fields of the status besides `conditions`."""
    managers: Mapping[str, str] = field(default_factory=dict)
    """The field manager of each foreign condition, by the condition's type."""
    remainders: tuple[Object, ...] = ()
    """Required fields of foreign conditions that no other manager owns, with their present values.

    If a manager stops applying a field, the API server removes the field. So these fields must be applied for the
    conditions to stay valid.
    """

    def are_in(self, status: Mapping[str, Any]) -> bool:
        """Return whether a status still has all of these parts."""
        present = {condition["type"] for condition in status.get("conditions", ())}
        return self.fields <= status.keys() and self.managers.keys() <= present


def foreign_parts(obj: Object, *, manager: str) -> ForeignParts:
    """Return the parts of an object's status that `manager`, which only uses server-side apply, does not own."""
    fields: set[str] = set()
    owners: dict[str, dict[str, str]] = {}
    for entry in obj["metadata"].get("managedFields", ()):
        if (entry.get("manager"), entry.get("operation")) == (manager, "Apply"):
            continue
        name = str(entry.get("manager"))
        owned = (entry.get("fieldsV1") or {}).get("f:status") or {}
        fields |= {
            name_or_condition.removeprefix("f:")
            for name_or_condition in owned
            if name_or_condition.startswith("f:") and name_or_condition != "f:conditions"
        }
        for kind, part in _condition_fields(owned):
            owners.setdefault(kind, {}).setdefault(part, name)
    conditions = {
        name_or_condition["type"]: name_or_condition
        for name_or_condition in obj.get("status", {}).get("conditions", ())
    }
    managers = {
        kind: next(owned[part] for part in _TELLING if part in owned)
        for kind, owned in owners.items()
        if kind in conditions and any(part in owned for part in _TELLING)
    }
    remainders = []
    for kind in managers:
        left = {part: conditions[kind][part] for part in _REQUIRED if part not in owners[kind]}
        if left:
            remainders.append({"type": kind, **left})
    return ForeignParts(frozenset(fields), managers, tuple(remainders))


def _condition_fields(owned: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield type and field of each owned field of a condition."""
    for key, parts in (owned.get("f:conditions") or {}).items():
        if key.startswith("k:"):
            kind = str(json.loads(key.removeprefix("k:")).get("type"))
            for part in parts or ():
                yield kind, part.removeprefix("f:")
