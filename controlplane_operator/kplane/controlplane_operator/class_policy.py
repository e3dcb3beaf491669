"""The class in force of a control plane: the class that it names, or else its remembered class.

A class may be deleted or edited at any time, and a control plane may name another class later. Users rely on the
settings of the class: deletion policy, role, and renewal of credentials. So the operator records these settings with
each control plane before it applies them.
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
    """Class that a control plane follows."""

    chosen: ControlPlaneClass | None
    """Class in force; None if the control plane names no class, or no class can be followed."""
    lost: ConditionError | None = None
    """Why the present class is not in force: ClassNotFound, ClassInvalid, ModeNotAllowed or AuthModelNotSupported."""

    def remembered(self) -> RememberedClass | None:
        """Return the record of the class for the status, with which the control plane follows it after its deletion."""
        if self.chosen is None:
            return None
        spec = self.chosen.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        return RememberedClass(name=self.chosen.name, spec=spec)


def class_in_force(control_plane: ControlPlane, *, classes: Store) -> ClassInForce:
    """Return the class that the control plane names, or else its remembered class with the reason.

    If the named class is readable, its deletion policy applies in any case, because a deletion needs no other setting.
    A control plane that is being deleted is not checked against the class.
    """
    reference = control_plane.spec.class_ref
    if reference is None:
        return ClassInForce(None)
    try:
        named_class = classes.read(("", reference.name), ControlPlaneClass.model_validate)
    except ValidationError as error:
        return ClassInForce(_read_memory(control_plane), invalid_class(reference.name, error))
    if named_class is None:
        lost = ConditionError(
            Reason.CLASS_NOT_FOUND,
            f"ControlPlaneClass {reference.name}, named by spec.classRef, does not exist; create it or name another",
        )
        return ClassInForce(_read_memory(control_plane), lost)
    if control_plane.deleting:
        return ClassInForce(named_class)
    try:
        check_class(control_plane, chosen=named_class)
    except ConditionError as refused:
        return ClassInForce(_held_to(named_class, memory=_read_memory(control_plane), of=control_plane), refused)
    return ClassInForce(_with_former_schedule(named_class, of=control_plane))


def invalid_class(name: str, error: ValidationError) -> ConditionError:
    """Return the error of a class with invalid fields, for example from a later version of the CRD."""
    fields = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:3])
    return ConditionError(
        Reason.CLASS_INVALID,
        f"ControlPlaneClass {name} says what this version of kplane does not understand: {fields}; correct the class,"
        " or upgrade the operator",
    )


def with_class_found(control_plane: ControlPlane, *, followed: ClassInForce) -> list[Condition]:
    """Return the conditions with ClassFound=False if the control plane follows its remembered class."""
    conditions = control_plane.status.conditions
    if followed.lost is None or followed.chosen is None:
        return [condition for condition in conditions if condition.type != CLASS_FOUND]
    statement = f"what class {followed.chosen.name} said last stays in force"
    policy = f"with deletionPolicy {followed.chosen.spec.deletion_policy or DeletionPolicy.RETAIN}"
    return with_condition(
        conditions,
        of=control_plane,
        type=CLASS_FOUND,
        status="False",
        reason=followed.lost.reason,
        message=f"{followed.lost.message}; until then, {statement}, {policy}",
    )


def _read_memory(control_plane: ControlPlane) -> ControlPlaneClass | None:
    memory, reference = control_plane.status.remembered_class, control_plane.spec.class_ref
    # Before the first publication, no user relies on a class that the control plane no longer names.
    if memory is None or (
        control_plane.status.endpoint is None and (reference is None or reference.name != memory.name)
    ):
        return None
    try:
        return ControlPlaneClass.model_validate({"metadata": {"name": memory.name}, "spec": memory.spec})
    except ValidationError:
        return None  # another version of kplane recorded the class


def _held_to(
    named: ControlPlaneClass, *, memory: ControlPlaneClass | None, of: ControlPlane
) -> ControlPlaneClass | None:
    """Return the class in force if the named class refuses the control plane.

    A published control plane follows its remembered class, with the deletion policy of the named class. Otherwise
    returns None.
    """
    if memory is None or of.status.endpoint is None:
        return None
    spec = memory.spec.model_copy(update={"deletion_policy": named.spec.deletion_policy})
    return memory.model_copy(update={"spec": spec})


def _with_former_schedule(named: ControlPlaneClass, *, of: ControlPlane) -> ControlPlaneClass:
    """Return the class, with the remembered schedule of snapshots if its own schedule is invalid.

    Otherwise a typo in a class would stop the snapshots of all its control planes. The condition of the class reports
    the typo.
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
    """Return the desired home of the data: the present home, or the target of a migration."""
    home = home_asked_for(control_plane, chosen=chosen)
    return control_plane.home if home.is_like(control_plane.home) else control_plane.home.other(home)


def policy_of(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> DeletionPolicy:
    """Return the deletion policy: that of the spec, else of the class in force, else of the status.

    A removal keeps the policy with which it began, and only the spec can change that policy. An unclear policy is
    Retain, because retained data can be destroyed later, but destroyed data cannot be restored.
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
    """Return whether the removal has begun, by condition Deleting. The phase is Terminating in a pause, too."""
    return control_plane.deleting and find_condition(control_plane.status.conditions, DELETING) is not None


def is_unclear(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> bool:
    """Return whether a removal begins while the policy of the class differs from `status.deletionPolicy`.

    The order of the class edit and the deletion is then unknown: the operator was down, or saw both at once.
    """
    in_force = control_plane.status.deletion_policy
    if not control_plane.deleting or is_decided(control_plane) or in_force is None:
        return False
    by_class = _by_class(control_plane, chosen=chosen)
    return control_plane.spec.deletion_policy is None and by_class is not None and by_class is not in_force


def _by_class(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> DeletionPolicy | None:
    """Return the policy of the class, or the default; None if the named class is unknown."""
    if chosen is not None:
        return chosen.spec.deletion_policy or DeletionPolicy.RETAIN
    return DeletionPolicy.RETAIN if control_plane.spec.class_ref is None else None


def check_cluster_path(control_plane: ControlPlane) -> None:
    """Raise ConditionError if the clusterPath is not allowed: InvalidClusterPath, ClusterPathReserved."""
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
    """Raise ConditionError if the control plane cannot follow the class: ModeNotAllowed, AuthModelNotSupported."""
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
