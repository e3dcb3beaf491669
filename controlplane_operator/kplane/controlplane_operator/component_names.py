"""Names of a control plane's components in the runtime, and where they are on a cluster."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Final

from kplane.api.names import management_namespace
from kplane.workloads import RuntimeFailure
from kplane.workloads.pods import Placement

__all__ = ["apiserver_name", "components_of", "egress_name", "etcd_name", "mark_of", "mcm_mark", "mcm_name", "place"]

_NAMESPACE: Final = "kplane-cp"
_PROGRAMS: Final = {"apiserver": "kube-apiserver", "egress": "egress-proxy", "etcd": "etcd"}
_MCM: Final = re.compile(r"mcm([a-z2-7]{6})(x?-.+)")
_MARK_LETTERS: Final = 6
"""With "mcm" as many as the beginning of the namespace's name, in the place of which they are."""


def apiserver_name(control_plane: str) -> str:
    """Name of the component that is the control plane's kube-apiserver."""
    return _component(control_plane, kind="apiserver")


def etcd_name(control_plane: str) -> str:
    """Name of the component that is a dedicated control plane's etcd."""
    return _component(control_plane, kind="etcd")


def egress_name(control_plane: str) -> str:
    """Name of the component that is the proxy of the control plane's kube-apiserver to what its class allows."""
    return _component(control_plane, kind="egress")


def components_of(control_plane: str) -> list[str]:
    """Names of all components that a control plane may have, other than those of its registrations."""
    return [_component(control_plane, kind=kind) for kind in _PROGRAMS]


def mcm_name(control_plane: str, *, uid: str) -> str:
    """Name of the component that is the mcm of the registration with this uid, at the control plane that it serves."""
    return _component(control_plane, kind=f"mcm{mcm_mark(uid)}")


def mcm_mark(uid: str) -> str:
    """Return what tells the mcm of the registration with this uid from those of others, also of one of its name.

    These are 30 bits: two registrations may have the same mark.
    """
    return base64.b32encode(hashlib.sha256(uid.encode()).digest())[:_MARK_LETTERS].decode().lower()


def mark_of(component: str) -> str | None:
    """Return the `mcm_mark` of the registration whose mcm a component is; None for a component of another kind."""
    found = _MCM.fullmatch(component)
    return found[1] if found is not None else None


def _component(control_plane: str, *, kind: str) -> str:
    # The namespace's name is a DNS label and unique for each control plane, whatever its own name is like.
    return management_namespace(control_plane).replace(_NAMESPACE, kind, 1)


def place(component: str) -> Placement:
    """Tell where the objects of a component are: in the management namespace of its control plane.

    Raises RuntimeFailure for a name that is none of a component.
    """
    if (mcm := _MCM.fullmatch(component)) is not None:
        return Placement(namespace=f"{_NAMESPACE}{mcm[2]}", name=f"mcm-{mcm[1]}")
    kind = next((kind for kind in _PROGRAMS if component.startswith(kind)), None)
    if kind is None:
        raise RuntimeFailure(f"Component {component} is none of a control plane.")
    return Placement(namespace=component.replace(kind, _NAMESPACE, 1), name=_PROGRAMS[kind])
