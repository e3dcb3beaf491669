"""Where the file of a ControlPlaneSnapshot is, and whether the object was made again from that file."""

from __future__ import annotations

from kplane.api import ControlPlaneSnapshot
from kplane.api.names import IMPORTED_FROM_ANNOTATION
from kplane.controlplane_operator.status.partial import PartialSnapshot
from kplane.controlplane_operator.watch.cache import Object
from kplane.provider import Client
from kplane.provider.client.resources import NAMESPACES

__all__ = ["cluster_uid", "file_name", "imported_from", "location_of"]


def file_name(snapshot: ControlPlaneSnapshot | PartialSnapshot) -> str:
    """Return the name of the file that the operator writes: by uid, so that no two snapshots have the same."""
    return f"controlplane-{snapshot.name}-{snapshot.metadata.uid}.age"


def imported_from(obj: Object) -> str | None:
    """Return the location that a snapshot is imported from; None for a snapshot that this operator writes."""
    location: str | None = (obj["metadata"].get("annotations") or {}).get(IMPORTED_FROM_ANNOTATION)
    return location


def location_of(obj: Object) -> str | None:
    """Return the location of the file; None while a snapshot that this operator writes is not completed."""
    location: str | None = (obj.get("status") or {}).get("location")
    return location or imported_from(obj)


async def cluster_uid(client: Client) -> str:
    """Return what tells this management cluster from all others. Raises ProviderError."""
    uid: str = (await client.get(NAMESPACES, "kube-system"))["metadata"]["uid"]
    return uid
