"""Names of a control plane's components in the runtime, and where they are on a cluster."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from typing import Final

from kplane.api.names import management_namespace
from kplane.workloads import RuntimeFailure
from kplane.workloads.pods import Placement

__all__ = [
    "MCM_PREFIX",
    "MOST_ETCD_MEMBERS",
    "apiserver_name",
    "components_of",
    "egress_name",
    "etcd_name",
    "makes_template",
    "mark_of",
    "mcm_mark",
    "mcm_name",
    "place",
    "template_name",
]

_NAMESPACE: Final = "kplane-cp"
MOST_ETCD_MEMBERS: Final = 3
"""Of a dedicated control plane."""
_ETCD: Final = "etcd"
_API_SERVER: Final = "apiserver"
_EGRESS: Final = "egress"
_TEMPLATE: Final = "template"
_SECOND_API_SERVER: Final = "apiserve2"
"""As long as the first one: names of components are labels too, which have a greatest length."""
_SECOND_EGRESS: Final = "egress2"
_PROGRAMS: Final = {
    _API_SERVER: "kube-apiserver",
    _SECOND_API_SERVER: "kube-apiserver-2",
    _EGRESS: "egress-proxy",
    _SECOND_EGRESS: "egress-proxy-2",
    _TEMPLATE: "template",
}
_PROGRAM: Final = re.compile(rf"({'|'.join(_PROGRAMS)})(x?-.+)")
MCM_PREFIX: Final = "mcm"
"""So begin the names of components that are the mcm of a registration, and those of no others."""
_MCM: Final = re.compile(rf"{MCM_PREFIX}([a-z2-7]{{6}})(x?-.+)")
_MEMBER: Final = re.compile(r"etcd([1-5]?)(x?-.+)")
_MARK_LETTERS: Final = 6
"""With "mcm" as many as the beginning of the namespace's name, in the place of which they are."""


def apiserver_name(control_plane: str, *, slot: int = 0) -> str:
    """Name of the component that is the control plane's kube-apiserver, in the home of this slot."""
    return _component(control_plane, kind=_SECOND_API_SERVER if slot else _API_SERVER)


def etcd_name(control_plane: str, member: int = 0, *, slot: int = 0) -> str:
    """Name of the component that is a dedicated control plane's etcd, or one of its further members."""
    return _component(control_plane, kind=f"{_ETCD}{member + slot * MOST_ETCD_MEMBERS or ''}")


def egress_name(control_plane: str, *, slot: int = 0) -> str:
    """Name of the component that is the proxy of the control plane's kube-apiserver to what its class allows."""
    return _component(control_plane, kind=_SECOND_EGRESS if slot else _EGRESS)


def template_name(control_plane: str) -> str:
    """Name of the kube-apiserver that makes a template beside the control plane that asked for it first."""
    return _component(control_plane, kind=_TEMPLATE)


def makes_template(component: str) -> bool:
    """Tell whether a component is a kube-apiserver that makes a template."""
    return component.startswith(_TEMPLATE)


def components_of(control_plane: str) -> list[str]:
    """Names of all components that a control plane may have, other than those of its registrations."""
    members = (etcd_name(control_plane, number, slot=slot) for slot in (0, 1) for number in range(MOST_ETCD_MEMBERS))
    return [*(_component(control_plane, kind=kind) for kind in _PROGRAMS), *members]


def mcm_name(control_plane: str, *, uid: str) -> str:
    """Name of the component that is the mcm of the registration with this uid, at the control plane that it serves."""
    return _component(control_plane, kind=f"{MCM_PREFIX}{mcm_mark(uid)}")


@functools.lru_cache(maxsize=4096)
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
    if (found := _PROGRAM.fullmatch(component)) is not None:
        return Placement(namespace=f"{_NAMESPACE}{found[2]}", name=_PROGRAMS[found[1]])
    if (member := _MEMBER.fullmatch(component)) is None:
        raise RuntimeFailure(f"Component {component} is none of a control plane.")
    name = f"{_ETCD}-{member[1]}" if member[1] else _ETCD
    return Placement(namespace=f"{_NAMESPACE}{member[2]}", name=name, group=_ETCD)
