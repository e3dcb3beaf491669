"""Places: what of an API server, or of the shared etcd, one control plane has for itself, and which place is whose."""

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
    if stored_condition(control_plane, MANAGED).get("status") != "False":
        path = status.get("clusterPath")
        return [etcd_address(path)] if path else []
    return _addresses(status.get("claimedAddress"), status.get("endpoint"))


def begun_addresses(namespace: Object) -> list[str]:
    """Return the place that a management namespace records: it counts until the status of its control plane says it."""
    annotations = namespace["metadata"].get("annotations") or {}
    if path := annotations.get(CLUSTER_PATH_ANNOTATION):
        return [etcd_address(path)]
    return _addresses(annotations.get(CLAIMED_ADDRESS_ANNOTATION))


def owner_uids(namespace: Object) -> set[str]:
    """Return the uid of the control plane that a management namespace is of, as annotation or owner."""
    metadata = namespace["metadata"]
    owners = {owner.get("uid") for owner in metadata.get("ownerReferences") or ()}
    return {uid for uid in (*owners, (metadata.get("annotations") or {}).get(UID_ANNOTATION)) if uid}


def written_addresses(endpoint: Object) -> list[str]:
    """Return the places that a ControlPlaneEndpoint may lead to as it is written, without a tenant's path."""
    return _addresses(*((endpoint.get(part) or {}).get("endpoint") for part in ("spec", "status")))


def _addresses(*urls: str | None) -> list[str]:
    found = []
    for url in urls:
        with contextlib.suppress(ValueError):
            found += [normalized_address(url)] if url else []
    return list(dict.fromkeys(found))
