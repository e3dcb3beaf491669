"""Tells which changes concern a reconciler that has nothing to do for most objects.

Each answer is by a glance at objects as they are stored. If it is not certain that there is nothing to do, the
reconciler is woken, and decides itself.
"""

from __future__ import annotations

from kplane.api import RegistrationMode
from kplane.api.conditions import ADDONS_READY, DEDICATED_READY
from kplane.api.names import FINALIZER
from kplane.controlplane_operator.watch.cache import Change, Object, Store
from kplane.controlplane_operator.watch.conditions import stored_condition

__all__ = [
    "concerns_mcm",
    "concerns_schedule",
    "has_addons",
    "is_held",
    "is_published",
    "may_need_mcm",
    "may_need_snapshots",
    "may_resolve",
]


def has_addons(control_plane: Object, *, classes: Store) -> bool:
    """Tell whether an add-on may be wanted in a control plane, or be there."""
    if stored_condition(control_plane, ADDONS_READY):
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
    return RegistrationMode.DEDICATED in modes or bool(stored_condition(registration, DEDICATED_READY))


def concerns_mcm(change: Change) -> bool:
    """Tell whether the mcm of a registration may have to do with its change.

    It has with each that comes, because an operator before this one may have left something, and each that goes.
    """
    return change.old is None or change.new is None or may_need_mcm(change.old) or may_need_mcm(change.new)


def is_published(control_plane: Object | None) -> bool:
    """Tell whether a control plane has published all that registrations resolve to."""
    return all(_published(control_plane))


def may_resolve(change: Change) -> bool:
    """Tell whether registrations may resolve otherwise after a change of their control plane.

    Before it publishes something none resolves, and only the words about that change.
    """
    return change.new is None or any(
        any(_published(obj)) or "deletionTimestamp" in obj["metadata"]
        for obj in (change.old, change.new)
        if obj is not None
    )


def _published(control_plane: Object | None) -> tuple[bool, bool]:
    status = (control_plane or {}).get("status") or {}
    return bool(status.get("kubeconfigSecretRef")), bool(status.get("endpoint"))


def is_held(change: Change) -> bool:
    """Tell whether an object only got the operator's finalizer."""
    if change.old is None or change.new is None or FINALIZER not in _finalizers(change.new):
        return False
    return FINALIZER not in _finalizers(change.old) and _unheld(change.old) == _unheld(change.new)


def _finalizers(obj: Object) -> list[str]:
    found: list[str] = obj["metadata"].get("finalizers") or []
    return found


def _unheld(obj: Object) -> Object:
    left = {name: value for name, value in obj["metadata"].items() if name not in {"finalizers", "resourceVersion"}}
    return {**obj, "metadata": left}


def _class_may_say(control_plane: Object, field: str, *, classes: Store) -> bool:
    """Tell whether the class, or what was remembered of it, has a field; also while the class is not known."""
    reference = (control_plane.get("spec") or {}).get("classRef")
    if reference is None:
        return False
    named = classes.get(("", reference.get("name", "")))
    followed = (named, (control_plane.get("status") or {}).get("rememberedClass") or {})
    return any(each is None or bool((each.get("spec") or {}).get(field)) for each in followed)
