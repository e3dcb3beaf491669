"""The class that a control plane follows: the one it names, and where that cannot be followed, what was decided last.

A class may be deleted or edited at any time, and a control plane may come to name another one. It was promised what its
class said: a deletion policy, a role, credentials that are renewed. So that is written down with each control plane
before anything is made after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from kplane.api import (
    DELETING,
    RESERVED_CLUSTER_PATHS,
    AuthModel,
    Condition,
    ControlPlane,
    ControlPlaneClass,
    DeletionPolicy,
    Home,
    RememberedClass,
    find_condition,
    is_cluster_path,
)
from kplane.api.conditions import CLASS_FOUND
from kplane.api.reasons import Reason
from kplane.controlplane_operator.schedule import Schedule
from kplane.controlplane_operator.status.conditions import with_condition
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.cache import Store

__all__ = [
    "ClassInForce",
    "check_class",
    "check_cluster_path",
    "class_in_force",
    "home_asked_for",
    "invalid_class",
    "is_decided",
    "is_unclear",
    "policy_of",
    "wanted_home",
    "with_class_found",
]


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
    try:
        named = classes.read(("", reference.name), ControlPlaneClass.model_validate)
    except ValidationError as error:
        return ClassInForce(_read_memory(control_plane), invalid_class(reference.name, error))
    if named is None:
        lost = ConditionError(
            Reason.CLASS_NOT_FOUND,
            f"ControlPlaneClass {reference.name}, named by spec.classRef, does not exist; create it or name another",
        )
        return ClassInForce(_read_memory(control_plane), lost)
    if control_plane.deleting:
        return ClassInForce(named)
    try:
        check_class(control_plane, chosen=named)
    except ConditionError as refused:
        return ClassInForce(_held_to(named, memory=_read_memory(control_plane), of=control_plane), refused)
    return ClassInForce(_with_former_schedule(named, of=control_plane))


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
    # Before anything was published, no user relies on a class that is not named any more.
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


def _with_former_schedule(named: ControlPlaneClass, *, of: ControlPlane) -> ControlPlaneClass:
    """Return the class with the schedule of snapshots that the control plane had, if the schedule is invalid now.

    Otherwise a typo in a class would end the snapshots of each control plane of the class. The condition of the class
    names the typo.
    """
    if not _is_schedule_invalid(named):
        return named
    memory = _read_memory(of)
    if memory is None or memory.spec.snapshots is None or _is_schedule_invalid(memory):
        return named
    return named.model_copy(update={"spec": named.spec.model_copy(update={"snapshots": memory.spec.snapshots})})


def _is_schedule_invalid(chosen: ControlPlaneClass) -> bool:
    return chosen.spec.snapshots is not None and Schedule.read(chosen.spec.snapshots.schedule) is None


def home_asked_for(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> Home:
    """Return the home that spec and class ask for, with the first set of names."""
    virtual = chosen.spec.virtual if chosen is not None else None
    return control_plane.home_asked_for(by_class=virtual.data_store_ref if virtual is not None else None)


def wanted_home(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> Home:
    """Return where spec and class have the data live: where they are, or where a migration goes to."""
    asked = home_asked_for(control_plane, chosen=chosen)
    return control_plane.home if asked.is_like(control_plane.home) else control_plane.home.other(asked)


def policy_of(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> DeletionPolicy:
    """Decide by the spec, else by the class in force, else by what was decided before.

    What a removal began with holds, whatever becomes of the class; only the spec counts until the end. What is unclear
    is Retain: data that are kept can be destroyed later, and not the other way round.
    """
    if control_plane.spec.deletion_policy is not None:
        return control_plane.spec.deletion_policy
    in_force = control_plane.status.deletion_policy
    if is_decided(control_plane) and in_force is not None:
        return in_force
    if is_unclear(control_plane, chosen=chosen):
        return DeletionPolicy.RETAIN
    return _by_class(control_plane, chosen=chosen) or in_force or DeletionPolicy.RETAIN


def is_decided(control_plane: ControlPlane) -> bool:
    """Tell whether the removal has begun: by its condition, because the phase is Terminating in a pause as well."""
    return control_plane.deleting and find_condition(control_plane.status.conditions, DELETING) is not None


def is_unclear(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> bool:
    """Tell whether a removal that begins finds the class say something else than `status.deletionPolicy`.

    It cannot know then which was first, the edit of the class or the deletion: the operator was away, or saw both at
    once.
    """
    in_force = control_plane.status.deletion_policy
    if not control_plane.deleting or is_decided(control_plane) or in_force is None:
        return False
    by_class = _by_class(control_plane, chosen=chosen)
    return control_plane.spec.deletion_policy is None and by_class is not None and by_class is not in_force


def _by_class(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> DeletionPolicy | None:
    """Return what the class says, or the default; None where the class that is named is not known."""
    if chosen is not None:
        return chosen.spec.deletion_policy or DeletionPolicy.RETAIN
    return DeletionPolicy.RETAIN if control_plane.spec.class_ref is None else None


def check_cluster_path(control_plane: ControlPlane) -> None:
    """Raise ConditionError where the path cannot be one: InvalidClusterPath, ClusterPathReserved."""
    path = control_plane.cluster_path
    granted = control_plane.status.cluster_path
    how = (
        "" if control_plane.spec.virtual is not None else " (the object's name, as spec.virtual.clusterPath is not set)"
    )
    if not is_cluster_path(path):
        raise ConditionError(
            Reason.INVALID_CLUSTER_PATH,
            f"clusterPath {path!r}{how} is no DNS label: set spec.virtual.clusterPath to at most 63 lower-case letters,"
            " digits and '-', with a letter or digit at both ends",
        )
    if path in RESERVED_CLUSTER_PATHS:
        raise ConditionError(
            Reason.CLUSTER_PATH_RESERVED,
            f"clusterPath {path!r}{how} is reserved; set spec.virtual.clusterPath to another one",
        )
    if granted is not None and granted != path:
        raise ConditionError(
            Reason.INVALID_CLUSTER_PATH,
            f"clusterPath cannot change from {granted!r} to {path!r}, because the data lies under it;"
            " set spec.virtual.clusterPath back",
        )


def check_class(control_plane: ControlPlane, *, chosen: ControlPlaneClass) -> None:
    """Raise ConditionError where the control plane cannot follow the class: ModeNotAllowed, AuthModelNotSupported."""
    allowed = chosen.spec.modes_allowed
    if allowed and control_plane.spec.mode not in allowed:
        raise ConditionError(
            Reason.MODE_NOT_ALLOWED,
            f"mode {control_plane.spec.mode} is not allowed by ControlPlaneClass {chosen.name}, which allows"
            f" {' and '.join(allowed)}; name another class",
        )
    if chosen.spec.auth.model is AuthModel.X509 and control_plane.spec.endpoint_ref is not None:
        raise ConditionError(
            Reason.AUTH_MODEL_NOT_SUPPORTED,
            f"auth.model x509 of ControlPlaneClass {chosen.name} needs the client CA, which kplane does not have of an"
            " adopted control plane; name a class with model token",
        )
