"""Tells which changes concern a reconciler that has nothing to do for most objects.

Each answer is by a glance at objects as they are stored. If it is not certain that there is nothing to do, the
reconciler is woken, and decides itself.
"""

from __future__ import annotations

from kplane.api import RegistrationMode
from kplane.api.conditions import ADDONS_READY, DEDICATED_READY
from kplane.controlplane_operator.watch.cache import Change, Object, Store

__all__ = ["concerns_mcm", "concerns_schedule", "has_addons", "may_need_mcm", "may_need_snapshots"]


def has_addons(control_plane: Object, *, classes: Store) -> bool:
    """Tell whether an add-on may be wanted in a control plane, or be there."""
    if _has_condition(control_plane, ADDONS_READY):
        return True
    return _class_may_say(control_plane, "addons", classes=classes)


def may_need_snapshots(control_plane: Object, *, classes: Store) -> bool:
    """Tell whether the class of a control plane may have snapshots made."""
    return _class_may_say(control_plane, "snapshots", classes=classes)


def concerns_schedule(change: Change, *, classes: Store) -> bool:
    """Tell whether the schedule of snapshots may have to do with a change of a control plane."""
    return any(may_need_snapshots(obj, classes=classes) for obj in (change.old, change.new) if obj is not None)


def may_need_mcm(registration: Object | None) -> bool:
    """Tell whether a registration wants an mcm of its own, or says of one that it runs or ends."""
    if registration is None:
        return False
    status = registration.get("status") or {}
    modes = (
        (registration.get("spec") or {}).get("mode"),
        status.get("mode"),
        (status.get("instance") or {}).get("mode"),
    )
    return RegistrationMode.DEDICATED in modes or _has_condition(registration, DEDICATED_READY)


def concerns_mcm(change: Change) -> bool:
    """Tell whether the mcm of a registration may have to do with its change.

    It has with each that comes, because an operator before this one may have left something, and each that goes.
    """
    return change.old is None or change.new is None or may_need_mcm(change.old) or may_need_mcm(change.new)


def _class_may_say(control_plane: Object, field: str, *, classes: Store) -> bool:
    """Tell whether the class, or what was remembered of it, has a field; also while the class is not known."""
    reference = (control_plane.get("spec") or {}).get("classRef")
    if reference is None:
        return False
    named = classes.get(("", reference.get("name", "")))
    followed = (named, (control_plane.get("status") or {}).get("rememberedClass") or {})
    return any(each is None or bool((each.get("spec") or {}).get(field)) for each in followed)


def _has_condition(obj: Object, condition: str) -> bool:
    return any(each["type"] == condition for each in (obj.get("status") or {}).get("conditions") or ())
