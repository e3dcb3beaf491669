"""Users of a class, and the fields of the class that have no effect for some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kplane.api import READY, AuthModel, ControlPlaneClass, ControlPlaneMode
from kplane.api.conditions import HIBERNATED
from kplane.api.reasons import Reason
from kplane.controlplane_operator.watch.cache import Change, Object
from kplane.controlplane_operator.watch.conditions import stored_condition

__all__ = ["concerned_classes", "named", "unserved"]

_NAMED_AT_MOST: Final = 5
_ROLES_OF_KUBERNETES: Final = frozenset({"cluster-admin", "admin", "edit", "view"})
"""ClusterRoles that each API server creates when it starts."""


def unserved(chosen: ControlPlaneClass, *, users: Sequence[Object]) -> list[str]:
    """Return sentences about fields of a class that have no effect, or none for some of its control planes."""
    sentences = []
    if missing := [service for service in chosen.spec.default_services if not service.served]:
        sentences.append(f"nothing serves {', '.join(missing)} in defaultServices; remove it")
    adopted = [obj for obj in users if _is_adopted(obj)]
    if chosen.spec.auth.model is AuthModel.X509 and adopted:
        sentences.append(
            f"auth.model x509 needs the client CA, which kplane does not have of adopted {named(adopted)}; they need a"
            " class with model token"
        )
    allowed = chosen.spec.modes_allowed
    forbidden = [obj for obj in users if allowed and obj["spec"].get("mode", ControlPlaneMode.VIRTUAL) not in allowed]
    if forbidden:
        sentences.append(f"modesAllowed does not allow the mode of {named(forbidden)}; those that run keep running")
    role = f"ClusterRole {chosen.spec.auth.default_role}, auth.defaultRole,"
    if roleless := [obj for obj in users if _lacks_role(obj)]:
        sentences.append(f"{role} does not exist in {named(roleless)}")
    asleep = [obj for obj in users if _is_asleep(obj)]
    if asleep and chosen.spec.auth.default_role not in _ROLES_OF_KUBERNETES:
        sentences.append(
            f"{role} was not looked for in sleeping {named(asleep)}: no API server runs; each wake looks for it"
        )
    return sentences


def named(control_planes: Sequence[Object]) -> str:
    """Return the names of control planes for a message; at most five of them."""
    names = [obj["metadata"]["name"] for obj in control_planes]
    more = f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else ""
    return f"control plane{'s' if len(names) > 1 else ''} {', '.join(names[:_NAMED_AT_MOST])}{more}"


def concerned_classes(change: Change) -> set[str]:
    """Return the names of the classes whose status depends on a change of a control plane."""
    before, after = (_use(obj) if obj is not None else set() for obj in (change.old, change.new))
    return {name for name, *_ in before ^ after}


def _use(obj: Object) -> set[tuple[str, bool, bool, bool]]:
    name = (obj["spec"].get("classRef") or {}).get("name")
    return {(name, _is_adopted(obj), _lacks_role(obj), _is_asleep(obj))} if name else set()


def _is_adopted(obj: Object) -> bool:
    return "endpointRef" in obj["spec"]


def _lacks_role(obj: Object) -> bool:
    return stored_condition(obj, READY).get("reason") == Reason.ROLE_NOT_FOUND


def _is_asleep(obj: Object) -> bool:
    return stored_condition(obj, HIBERNATED).get("status") == "True"
