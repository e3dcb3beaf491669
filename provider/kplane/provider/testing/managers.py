"""Ownership of the fields of an object by field managers: its managedFields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import orjson

from kplane.provider.errors import ApiError, Conflict
from kplane.provider.testing.fields import Path, decoded, encoded, shown, shown_order
from kplane.provider.testing.merging import Comparison, compared, equal, leaves, merged, with_parents, without
from kplane.provider.testing.shapes import Shape

__all__ = ["Manager", "Ownership", "Write", "applied", "ownership_of", "updated", "written"]

Object = dict[str, Any]

_MAX_UPDATERS: Final = 10
_MERGED_UPDATERS: Final = "ancient-changes"
# managedFields never list these fields.
_UNOWNED: Final = frozenset(
    {("f:apiVersion",), ("f:kind",), ("f:metadata",)}
    | {
        ("f:metadata", f"f:{name}")
        for name in (
            *("clusterName", "creationTimestamp", "generation", "managedFields", "name", "namespace"),
            *("resourceVersion", "selfLink", "uid"),
        )
    }
)


class Manager(NamedTuple):
    """A field manager: name, operation, API version and subresource."""

    operation: str
    name: str
    api_version: str
    subresource: str = ""

    @property
    def shown(self) -> str:
        """Name of the manager in the message of a conflict."""
        name = orjson.dumps(self.name).decode()
        if self.subresource:
            name += f' with subresource "{self.subresource}"'
        return name if self.operation == "Apply" else f"{name} using {self.api_version}"


@dataclass(frozen=True, slots=True)
class _Owned:
    """The fields of a manager, and the time of their last change."""

    paths: frozenset[Path]
    time: str = ""

    def without(self, paths: set[Path]) -> _Owned:
        return replace(self, paths=self.paths - paths)


Ownership = Mapping[Manager, _Owned]


def ownership_of(entries: object) -> Ownership | None:
    """Read managedFields; None if a kube-apiserver rejects them."""
    ownership: dict[Manager, _Owned] = {}
    try:
        for entry in entries if isinstance(entries, list) else ():
            if entry["operation"] not in {"Apply", "Update"} or entry["fieldsType"] != "FieldsV1":
                return None
            subresource = entry.get("subresource", "")
            manager = Manager(entry["operation"], entry.get("manager", ""), entry["apiVersion"], subresource)
            ownership[manager] = _Owned(frozenset(decoded(entry["fieldsV1"])), entry.get("time", ""))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return ownership


def written(ownership: Ownership) -> list[Object]:
    """Return an ownership as managedFields."""
    return [_entry(*item) for item in sorted(ownership.items(), key=_order)]


def _order(item: tuple[Manager, _Owned]) -> tuple[str, ...]:
    (operation, *rest), owned = item
    return operation, owned.time, *rest


def _entry(manager: Manager, owned: _Owned) -> Object:
    entry: Object = {"manager": manager.name, "operation": manager.operation, "apiVersion": manager.api_version}
    if owned.time:
        entry["time"] = owned.time
    entry |= {"fieldsType": "FieldsV1", "fieldsV1": encoded(owned.paths)}
    if manager.subresource:
        entry["subresource"] = manager.subresource
    return entry


@dataclass(frozen=True, slots=True)
class Write:
    """A write of a manager. It cannot change or own the top-level fields `reset`."""

    manager: Manager
    shape: Shape
    reset: frozenset[str]
    now: str

    def compared(self, live: Object, after: Object) -> Comparison:
        """Return the fields that the write changes."""
        # The Go types of Kubernetes have no pointers for these fields, so both are always present.
        always: Object = {"spec": {}, "status": {}} if self.shape.typed else {}
        changes = compared(always | live, after, self.shape)
        return Comparison(*map(self.kept, (changes.added, changes.modified, changes.removed)))

    def kept(self, paths: set[Path]) -> set[Path]:
        """Return the fields that the write can change."""
        return {path for path in paths if path[0] not in self.reset}


def updated(ownership: Ownership, write: Write, live: Object, after: Object) -> Ownership:
    """Return the ownership after an update or a patch, whose manager owns the changed fields."""
    change = write.compared(live, after)
    taken = change.added | change.modified
    result = {manager: owned.without(taken | change.removed) for manager, owned in ownership.items()}
    if mine := taken - _UNOWNED:
        before = result.get(write.manager, _Owned(frozenset()))
        result[write.manager] = _Owned(before.paths | mine, write.now)
    return _capped(_non_empty(result))


def applied(
    ownership: Ownership, write: Write, live: Object, config: Object, *, force: bool
) -> tuple[Object, Ownership]:
    """Return the object after a server-side apply, and the new ownership.

    Raises Conflict if the apply changes fields of other managers, unless `force` transfers these fields.
    """
    mine = _Owned(frozenset(write.kept(leaves(config, write.shape))))
    last = ownership.get(write.manager)
    result = dict(ownership) | {write.manager: mine}
    after = merged(live, config, write.shape)
    if last is not None and last.paths:
        after = _pruned(after, last.paths, frozenset().union(*(owned.paths for owned in result.values())), write.shape)
    change = write.compared(live, after)
    taken = change.added | change.modified
    others = {manager: owned for manager, owned in result.items() if manager != write.manager}
    conflicts = {manager: both for manager, owned in others.items() if (both := owned.paths & taken)}
    if conflicts and not force:
        raise _conflict(conflicts)
    result |= {manager: owned.without(taken | change.removed) for manager, owned in others.items()}
    time = write.now if not equal(live, after) else last.time if last is not None else ""
    result[write.manager] = _Owned(mine.paths - _UNOWNED, time)
    return after, _non_empty(result)


def _pruned(after: Object, last: frozenset[Path], owned: frozenset[Path], shape: Shape) -> Any:
    """Remove the fields of the last apply of a manager that no manager owns now."""
    last_named, everything = with_parents(last, shape), with_parents(leaves(after, shape), shape)
    pruned = without(after, last_named, shape)
    kept = with_parents(leaves(pruned, shape), shape) | with_parents(owned, shape)
    pruned = without(after, everything - kept, shape)
    return without(after, (everything - with_parents(leaves(pruned, shape), shape)) & last_named, shape)


def _non_empty(ownership: Ownership) -> dict[Manager, _Owned]:
    return {manager: owned for manager, owned in ownership.items() if owned.paths}


def _capped(ownership: dict[Manager, _Owned]) -> Ownership:
    """Merge the oldest managers of updates if there are too many."""
    updaters = sorted(
        (item for item in ownership.items() if item[0].operation == "Update"),
        key=lambda item: (item[1].time, item[0]),
    )
    surplus = len(updaters) - _MAX_UPDATERS
    if surplus <= 0:
        return ownership
    oldest = dict(updaters[: surplus + 1])
    old = Manager("Update", _MERGED_UPDATERS, updaters[0][0].api_version)
    paths = frozenset().union(*(owned.paths for owned in oldest.values()))
    rest = {manager: owned for manager, owned in ownership.items() if manager not in oldest}
    return {**rest, old: _Owned(paths, updaters[surplus][1].time)}


def _conflict(conflicts: Mapping[Manager, frozenset[Path]]) -> ApiError:
    fields = list(_sorted_conflicts(conflicts))
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {manager.shown}", "field": field}
        for manager, field in fields
    ]
    if len(fields) == 1:
        manager, field = fields[0]
        summary = f"1 conflict: conflict with {manager.shown}: {field}"
    else:
        lines = [
            line
            for manager in sorted(conflicts, key=_by_name)
            for line in (
                f"conflicts with {manager.shown}:",
                *(f"- {field}" for by, field in fields if by == manager),
            )
        ]
        summary = f"{len(fields)} conflicts: {chr(10).join(lines)}"
    # No FieldConflict: the client makes it from this answer, and adds the remedy to the message.
    return Conflict(409, "Conflict", f"Apply failed with {summary}", {"causes": causes})


def _sorted_conflicts(conflicts: Mapping[Manager, frozenset[Path]]) -> Iterator[tuple[Manager, str]]:
    for manager in sorted(conflicts, key=_by_name):
        for path in sorted(conflicts[manager], key=shown_order):
            yield manager, shown(path)


def _by_name(manager: Manager) -> tuple[str, ...]:
    operation, name, *rest = manager
    return name, operation, *rest
