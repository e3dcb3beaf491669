"""Names of a control plane's components in the runtime."""

from __future__ import annotations

from api.names import management_namespace

__all__ = ["apiserver_name", "etcd_name"]


def apiserver_name(control_plane: str) -> str:
    """Name of the component that is the control plane's kube-apiserver."""
    return _component(control_plane, kind="apiserver")


def etcd_name(control_plane: str) -> str:
    """Name of the component that is a dedicated control plane's etcd."""
    return _component(control_plane, kind="etcd")


def _component(control_plane: str, *, kind: str) -> str:
    # The namespace's name is a DNS label and unique for each control plane, whatever its own name is like.
    return management_namespace(control_plane).replace("kplane-cp", kind, 1)
