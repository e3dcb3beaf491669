"""The class that a control plane follows: the one it names, and where that cannot be followed, what was decided last.

A class may be deleted or edited at any time, and a control plane may come to name another one. It was promised what its
class said: a deletion policy, a role, credentials that are renewed. So that is written down with each control plane
before anything is made after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from kplane.api import Condition, ControlPlane, ControlPlaneClass, DeletionPolicy, RememberedClass
from kplane.controlplane_operator.controlplanes.validation import check_class
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.reasons import Reason
from kplane.controlplane_operator.status.writer import with_condition
from kplane.controlplane_operator.watch.cache import Store

__all__ = ["CLASS_FOUND", "ClassInForce", "class_in_force", "invalid_class", "with_class_found"]

CLASS_FOUND: Final = "ClassFound"
"""The condition that is False while a control plane follows what is remembered of its class; absent otherwise."""


@dataclass(frozen=True, slots=True)
class ClassInForce:
    """What a control plane follows."""

    chosen: ControlPlaneClass | None
    """None where the control plane names no class, or where there is none to follow."""
    lost: ConditionError | None = None
    """Why that is not the class as it is now: ClassNotFound, ClassInvalid, ModeNotAllowed or AuthModelNotSupported."""

    def remembered(self) -> RememberedClass | None:
        """Return what is to be written down, so that it can be followed once the class is gone."""
        if self.chosen is None:
            return None
        spec = self.chosen.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        return RememberedClass(name=self.chosen.name, spec=spec)


def class_in_force(control_plane: ControlPlane, *, classes: Store) -> ClassInForce:
    """Return the class that the control plane names; where that cannot be, the one that it followed last, as it was.

    Where the class can be read, its deletion policy counts in any case: to be deleted needs no more than that.
    """
    reference = control_plane.spec.class_ref
    if reference is None:
        return ClassInForce(None)
    obj = classes.get(("", reference.name))
    if obj is None:
        lost = ConditionError(
            Reason.CLASS_NOT_FOUND,
            f"ControlPlaneClass {reference.name}, named by spec.classRef, does not exist; create it or name another",
        )
        return ClassInForce(_read_memory(control_plane), lost)
    try:
        named = ControlPlaneClass.model_validate(obj)
    except ValidationError as error:
        return ClassInForce(_read_memory(control_plane), invalid_class(reference.name, error))
    if control_plane.deleting:
        return ClassInForce(named)
    try:
        check_class(control_plane, chosen=named)
    except ConditionError as refused:
        return ClassInForce(_held_to(named, memory=_read_memory(control_plane), of=control_plane), refused)
    return ClassInForce(named)


def invalid_class(name: str, error: ValidationError) -> ConditionError:
    """Say what of a class this operator does not understand, such as what a later version of the CRD allows."""
    fields = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:3])
    return ConditionError(
        Reason.CLASS_INVALID,
        f"ControlPlaneClass {name} says what this version of kplane does not understand: {fields}; correct the class,"
        " or upgrade the operator",
    )


def with_class_found(control_plane: ControlPlane, *, followed: ClassInForce) -> list[Condition]:
    """Return the control plane's conditions, with ClassFound=False where it follows what is remembered of its class."""
    conditions = control_plane.status.conditions
    if followed.lost is None or followed.chosen is None:
        return [condition for condition in conditions if condition.type != CLASS_FOUND]
    said = f"what class {followed.chosen.name} said last stays in force"
    policy = f"with deletionPolicy {followed.chosen.spec.deletion_policy or DeletionPolicy.RETAIN}"
    return with_condition(
        conditions,
        of=control_plane,
        type=CLASS_FOUND,
        status="False",
        reason=followed.lost.reason,
        message=f"{followed.lost.message}; until then, {said}, {policy}",
    )


def _read_memory(control_plane: ControlPlane) -> ControlPlaneClass | None:
    known, named = control_plane.status.remembered_class, control_plane.spec.class_ref
    # Before anything was published, nobody relies on what a class said that is not named any more.
    if known is None or (control_plane.status.endpoint is None and (named is None or named.name != known.name)):
        return None
    try:
        return ControlPlaneClass.model_validate({"metadata": {"name": known.name}, "spec": known.spec})
    except ValidationError:
        return None  # written down by another version of kplane


def _held_to(
    named: ControlPlaneClass, *, memory: ControlPlaneClass | None, of: ControlPlane
) -> ControlPlaneClass | None:
    """Return what is followed of a class that refuses the control plane: nothing where none of it runs yet."""
    if memory is None or of.status.endpoint is None:
        return None
    spec = memory.spec.model_copy(update={"deletion_policy": named.spec.deletion_policy})
    return memory.model_copy(update={"spec": spec})
