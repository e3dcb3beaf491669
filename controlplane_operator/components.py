"""Names of a control plane's components in the runtime, and where they are on a cluster."""

from __future__ import annotations

from typing import Final

from api.names import management_namespace
from workloads import RuntimeFailure
from workloads.pods import Placement

__all__ = ["apiserver_name", "etcd_name", "place"]

_NAMESPACE: Final = "kplane-cp"
_PROGRAMS: Final = {"apiserver": "kube-apiserver", "etcd": "etcd"}


def apiserver_name(control_plane: str) -> str:
    """Name of the component that is the control plane's kube-apiserver."""
    return _component(control_plane, kind="apiserver")


def etcd_name(control_plane: str) -> str:
    """Name of the component that is a dedicated control plane's etcd."""
    return _component(control_plane, kind="etcd")


def _component(control_plane: str, *, kind: str) -> str:
    # The namespace's name is a DNS label and unique for each control plane, whatever its own name is like.
    return management_namespace(control_plane).replace(_NAMESPACE, kind, 1)


def place(component: str) -> Placement:
    """Tell where the objects of a component are: in the management namespace of its control plane.

    Raises RuntimeFailure for a name that is none of a component.
    """
    kind = next((kind for kind in _PROGRAMS if component.startswith(kind)), None)
    if kind is None:
        raise RuntimeFailure(f"Component {component} is none of a control plane.")
    return Placement(namespace=component.replace(kind, _NAMESPACE, 1), name=_PROGRAMS[kind])
