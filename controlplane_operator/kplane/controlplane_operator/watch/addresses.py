"""Exclusive places of control planes, in an API server or the shared etcd, and the holders of each place."""

from __future__ import annotations

import contextlib
from typing import Final

from kplane.api.addresses import normalized_address
from kplane.api.conditions import MANAGED
from kplane.api.names import CLAIMED_ADDRESS_ANNOTATION, CLUSTER_PATH_ANNOTATION, UID_ANNOTATION
from kplane.controlplane_operator.watch.cache import Object
from kplane.controlplane_operator.watch.conditions import stored_condition

__all__ = ["begun_addresses", "etcd_address", "held_addresses", "is_etcd_address", "owner_uids", "written_addresses"]

_ETCD: Final = "shared etcd/"


def etcd_address(cluster_path: str) -> str:
    """Return the name of the place of a clusterPath in the shared etcd."""
    return f"{_ETCD}{cluster_path}"


def is_etcd_address(address: str) -> bool:
    """Return whether a place is in the shared etcd, and not the address of an API server."""
    return address.startswith(_ETCD)


def held_addresses(control_plane: Object) -> list[str]:
    """Return the places that the status of a control plane records.

    An adopted control plane has the address in use and the latest granted address. They differ while it moves.
    """
    status = control_plane.get("status") or {}
    if stored_condition(control_plane, MANAGED).get("status") != "False":
        path = status.get("clusterPath")
        return [etcd_address(path)] if path else []
    return _addresses(status.get("claimedAddress"), status.get("endpoint"))


def begun_addresses(namespace: Object) -> list[str]:
    """Return the place that a management namespace records.

    The record counts until the status of the control plane has the place.
    """
    annotations = namespace["metadata"].get("annotations") or {}
    if path := annotations.get(CLUSTER_PATH_ANNOTATION):
        return [etcd_address(path)]
    return _addresses(annotations.get(CLAIMED_ADDRESS_ANNOTATION))


def owner_uids(namespace: Object) -> set[str]:
    """Return the uid of the control plane of a management namespace, from its annotation or owner reference."""
    metadata = namespace["metadata"]
    owners = {owner.get("uid") for owner in metadata.get("ownerReferences") or ()}
    return {uid for uid in (*owners, (metadata.get("annotations") or {}).get(UID_ANNOTATION)) if uid}


def written_addresses(endpoint: Object) -> list[str]:
    """Return the addresses in spec and status of a ControlPlaneEndpoint, without the path of a tenant."""
    return _addresses(*((endpoint.get(part) or {}).get("endpoint") for part in ("spec", "status")))


def _addresses(*urls: str | None) -> list[str]:
    addresses = []
    for url in urls:
        with contextlib.suppress(ValueError):
            addresses += [normalized_address(url)] if url else []
    return list(dict.fromkeys(addresses))
