"""Predicates for reconcilers that have no work for most objects.

Each predicate looks at stored objects without a model. In doubt it accepts the change, and the reconciler decides.
"""

from __future__ import annotations

from kplane.api import RegistrationMode
from kplane.api.conditions import ADDONS_READY, DEDICATED_READY, READY
from kplane.api.names import FINALIZER, PAUSED_ANNOTATION
from kplane.controlplane_operator.watch.cache import Change, Object, Store
from kplane.controlplane_operator.watch.conditions import stored_condition

__all__ = [
    "changes_demand",
    "concerns_mcm",
    "concerns_schedule",
    "has_addons",
    "is_held",
    "is_hibernated",
    "is_published",
    "may_need_mcm",
    "may_need_snapshots",
    "may_resolve",
]


def has_addons(control_plane: Object, *, classes: Store) -> bool:
    """Return whether the class may request an add-on in a control plane, or an add-on may be installed there."""
    if stored_condition(control_plane, ADDONS_READY):
        return True
    return _class_may_say(control_plane, "addons", classes=classes)


def may_need_snapshots(control_plane: Object, *, classes: Store) -> bool:
    """Return whether the class of a control plane may request scheduled snapshots."""
    return _class_may_say(control_plane, "snapshots", classes=classes)


def concerns_schedule(change: Change, *, classes: Store) -> bool:
    """Return whether a change of a control plane may affect its snapshot schedule."""
    return any(may_need_snapshots(obj, classes=classes) for obj in (change.old, change.new) if obj is not None)


def may_need_mcm(registration: Object | None) -> bool:
    """Return whether a registration requests a dedicated mcm, or its status reports one."""
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
    """Return whether a change of a registration may affect its dedicated mcm.

    Each new and each deleted registration counts, because an earlier operator may have left an mcm.
    """
    return change.old is None or change.new is None or may_need_mcm(change.old) or may_need_mcm(change.new)


def is_hibernated(control_plane: Object) -> bool:
    """Return whether a control plane sleeps, falls asleep, or is not awake again yet."""
    return (control_plane.get("status") or {}).get("hibernation") is not None


def changes_demand(change: Change) -> bool:
    """Return whether a change of a registration may give its control plane or services to another registration."""
    return _demand(change.old) != _demand(change.new)


def _demand(registration: Object | None) -> tuple[object, ...]:
    metadata = (registration or {}).get("metadata", {})
    paused = metadata.get("annotations", {}).get(PAUSED_ANNOTATION)
    reason = stored_condition(registration, READY).get("reason")
    return (registration or {}).get("spec"), metadata.get("deletionTimestamp"), paused, reason


def is_published(control_plane: Object | None) -> bool:
    """Return whether a control plane has published all fields that registrations resolve to."""
    return all(_published(control_plane))


def may_resolve(change: Change) -> bool:
    """Return whether registrations may resolve differently after a change of their control plane.

    No registration resolves before the control plane publishes something. Until then, only messages change.
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
    """Return whether the only change of an object is the operator's finalizer."""
    if change.old is None or change.new is None or FINALIZER not in _finalizers(change.new):
        return False
    return FINALIZER not in _finalizers(change.old) and _unheld(change.old) == _unheld(change.new)


def _finalizers(obj: Object) -> list[str]:
    finalizers: list[str] = obj["metadata"].get("finalizers") or []
    return finalizers


def _unheld(obj: Object) -> Object:
    metadata = {name: value for name, value in obj["metadata"].items() if name not in {"finalizers", "resourceVersion"}}
    return {**obj, "metadata": metadata}


def _class_may_say(control_plane: Object, field: str, *, classes: Store) -> bool:
    """Return whether the class or its remembered copy has a field; also True while the class is missing."""
    reference = (control_plane.get("spec") or {}).get("classRef")
    if reference is None:
        return False
    named = classes.get(("", reference.get("name", "")))
    candidates = (named, (control_plane.get("status") or {}).get("rememberedClass") or {})
    return any(candidate is None or bool((candidate.get("spec") or {}).get(field)) for candidate in candidates)
