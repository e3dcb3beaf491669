"""Places: what of an API server, or of the shared etcd, one control plane has for itself, and which place is whose."""

from __future__ import annotations

import contextlib
from typing import Final

from kplane.api.addresses import normalized_address
from kplane.api.conditions import MANAGED
from kplane.controlplane_operator.watch.cache import Object

__all__ = ["etcd_address", "held_addresses", "is_etcd_address", "written_addresses"]

_ETCD: Final = "shared etcd/"


def etcd_address(cluster_path: str) -> str:
    """Name what lies under a clusterPath in the etcd that control planes of mode Virtual share."""
    return f"{_ETCD}{cluster_path}"


def is_etcd_address(address: str) -> bool:
    """Tell whether a place is one of the shared etcd, and not the address of an API server."""
    return address.startswith(_ETCD)


def held_addresses(control_plane: Object) -> list[str]:
    """Return the places that are written down as a control plane's, in its status.

    An adopted one has where it is published, and what it was granted last; the two differ while it moves.
    """
    status = control_plane.get("status") or {}
    managed = next((told.get("status") for told in status.get("conditions") or () if told.get("type") == MANAGED), None)
    if managed != "False":
        path = status.get("clusterPath")
        return [etcd_address(path)] if path else []
    return _addresses(status.get("claimedAddress"), status.get("endpoint"))


def written_addresses(endpoint: Object) -> list[str]:
    """Return the places that a ControlPlaneEndpoint may lead to as it is written, without a tenant's path."""
    return _addresses(*((endpoint.get(part) or {}).get("endpoint") for part in ("spec", "status")))


def _addresses(*urls: str | None) -> list[str]:
    found = []
    for url in urls:
        with contextlib.suppress(ValueError):
            found += [normalized_address(url)] if url else []
    return list(dict.fromkeys(found))
