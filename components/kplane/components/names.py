"""Names of a control plane's components in the runtime, and the places of their objects in a cluster."""

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
"""Maximum number of etcd members of a dedicated control plane."""
_ETCD: Final = "etcd"
_API_SERVER: Final = "apiserver"
_EGRESS: Final = "egress"
_TEMPLATE: Final = "template"
_SECOND_API_SERVER: Final = "apiserve2"
"""Name of the second slot, of equal length: component names are also labels, and labels have a maximum length."""
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
"""Prefix of all components that are the mcm of a registration, and of no other components."""
_MCM: Final = re.compile(rf"{MCM_PREFIX}([a-z2-7]{{6}})(x?-.+)")
_MEMBER: Final = re.compile(r"etcd([1-5]?)(x?-.+)")
_MARK_LETTERS: Final = 6
"""Length of a mark. "mcm" and the mark are as long as `_NAMESPACE`, which they replace in a component's name."""


def apiserver_name(control_plane: str, *, slot: int = 0) -> str:
    """Return the name of a control plane's kube-apiserver component in this slot."""
    return _component(control_plane, kind=_SECOND_API_SERVER if slot else _API_SERVER)


def etcd_name(control_plane: str, member: int = 0, *, slot: int = 0) -> str:
    """Return the name of the component of a dedicated control plane's etcd member; `member` counts from 0."""
    return _component(control_plane, kind=f"{_ETCD}{member + slot * MOST_ETCD_MEMBERS or ''}")


def egress_name(control_plane: str, *, slot: int = 0) -> str:
    """Return the name of the egress proxy component beside a control plane's kube-apiserver in this slot."""
    return _component(control_plane, kind=_SECOND_EGRESS if slot else _EGRESS)


def template_name(control_plane: str) -> str:
    """Return the name of the kube-apiserver component that makes a template for its first control plane."""
    return _component(control_plane, kind=_TEMPLATE)


def makes_template(component: str) -> bool:
    """Return whether a component is a kube-apiserver that makes a template."""
    return component.startswith(_TEMPLATE)


def components_of(control_plane: str) -> list[str]:
    """Return the names of all components that a control plane may have, except for its registrations."""
    members = (etcd_name(control_plane, number, slot=slot) for slot in (0, 1) for number in range(MOST_ETCD_MEMBERS))
    return [*(_component(control_plane, kind=kind) for kind in _PROGRAMS), *members]


def mcm_name(control_plane: str, *, uid: str) -> str:
    """Return the name of the mcm component for the registration with this uid, at the control plane that it serves."""
    return _component(control_plane, kind=f"{MCM_PREFIX}{mcm_mark(uid)}")


@functools.lru_cache(maxsize=4096)
def mcm_mark(uid: str) -> str:
    """Return a mark that tells apart the mcm of registrations, even of registrations with equal names.

    A mark has 30 bits, so two registrations may have the same mark.
    """
    return base64.b32encode(hashlib.sha256(uid.encode()).digest())[:_MARK_LETTERS].decode().lower()


def mark_of(component: str) -> str | None:
    """Return the `mcm_mark` in the name of an mcm component; None for a component of another kind."""
    match = _MCM.fullmatch(component)
    return match[1] if match is not None else None


def _component(control_plane: str, *, kind: str) -> str:
    # The namespace's name is a DNS label, and unique for each control plane, for any name of the control plane.
    return management_namespace(control_plane).replace(_NAMESPACE, kind, 1)


def place(component: str) -> Placement:
    """Return the place of a component's objects, in the management namespace of its control plane.

    Raises RuntimeFailure if the name is no component name of a control plane.
    """
    if (mcm := _MCM.fullmatch(component)) is not None:
        return Placement(namespace=f"{_NAMESPACE}{mcm[2]}", name=f"mcm-{mcm[1]}")
    if (program := _PROGRAM.fullmatch(component)) is not None:
        return Placement(namespace=f"{_NAMESPACE}{program[2]}", name=_PROGRAMS[program[1]])
    if (member := _MEMBER.fullmatch(component)) is None:
        raise RuntimeFailure(f"Component {component} is none of a control plane.")
    name = f"{_ETCD}-{member[1]}" if member[1] else _ETCD
    return Placement(namespace=f"{_NAMESPACE}{member[2]}", name=name, group=_ETCD)
