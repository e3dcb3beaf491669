"""The class that a control plane follows: the one it names, and where that is gone, what it decided last.

A class may be deleted at any time. Its control planes were promised what it said: a deletion policy, a role,
credentials that are renewed. So its spec is written down with each of them before anything is made after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from api import Condition, ControlPlane, ControlPlaneClass, RememberedClass
from controlplane_operator.cache import Store
from controlplane_operator.status import with_condition
from controlplane_operator.trouble import Trouble

__all__ = ["CLASS_FOUND", "ClassInForce", "class_in_force", "invalid_class", "with_class_found"]

CLASS_FOUND: Final = "ClassFound"
"""The condition that is False while a control plane follows what is remembered of its class; absent otherwise."""


@dataclass(frozen=True, slots=True)
class ClassInForce:
    """What a control plane follows."""

    chosen: ControlPlaneClass | None
    """None where the control plane names no class, or where there is none to follow."""
    lost: Trouble | None = None
    """Why that is not the class as it is now: ClassNotFound or ClassInvalid."""

    def remembered(self) -> RememberedClass | None:
        """Return what is to be written down, so that it can be followed once the class is gone."""
        if self.chosen is None:
            return None
        spec = self.chosen.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        return RememberedClass(name=self.chosen.name, spec=spec)


def class_in_force(control_plane: ControlPlane, *, classes: Store) -> ClassInForce:
    """Return the class that the control plane names, as it is, else as it was when it was last followed."""
    reference = control_plane.spec.class_ref
    if reference is None:
        return ClassInForce(None)
    obj = classes.get(("", reference.name))
    if obj is None:
        lost = Trouble(
            "ClassNotFound",
            f"ControlPlaneClass {reference.name}, named by spec.classRef, does not exist; create it or name another",
            waits_for_event=True,
        )
        return ClassInForce(_read_memory(control_plane, name=reference.name), lost)
    try:
        return ClassInForce(ControlPlaneClass.model_validate(obj))
    except ValidationError as error:
        return ClassInForce(_read_memory(control_plane, name=reference.name), invalid_class(reference.name, error))


def invalid_class(name: str, error: ValidationError) -> Trouble:
    """Say what of a class this operator does not understand, such as what a later version of the CRD allows."""
    fields = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:3])
    return Trouble(
        "ClassInvalid",
        f"ControlPlaneClass {name} says what this version of kplane does not understand: {fields}; correct the class,"
        " or upgrade the operator",
        waits_for_event=True,
    )


def with_class_found(control_plane: ControlPlane, *, followed: ClassInForce) -> list[Condition]:
    """Return the control plane's conditions, with ClassFound=False where it follows what is remembered of its class."""
    conditions = control_plane.status.conditions
    if followed.lost is None or followed.chosen is None:
        return [condition for condition in conditions if condition.type != CLASS_FOUND]
    return with_condition(
        conditions,
        of=control_plane,
        type=CLASS_FOUND,
        status="False",
        reason=followed.lost.reason,
        message=f"{followed.lost.message}; until then, what the class decided last stays in force",
    )


def _read_memory(control_plane: ControlPlane, *, name: str) -> ControlPlaneClass | None:
    known = control_plane.status.remembered_class
    if known is None or known.name != name:
        return None
    try:
        return ControlPlaneClass.model_validate({"metadata": {"name": name}, "spec": known.spec})
    except ValidationError:
        return None  # written down by another version of kplane
