"""The objects of the management cluster without which the data of control planes are worth little."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from kplane.api import DeletionPolicy
from kplane.api.names import CONTROL_PLANE_LABEL, IMPORTED_FROM_ANNOTATION
from kplane.controlplane_operator.kinds import (
    CONTROL_PLANE_CLASSES,
    CONTROL_PLANE_ENDPOINTS,
    CONTROL_PLANE_REGISTRATIONS,
    CONTROL_PLANE_SNAPSHOTS,
    CONTROL_PLANES,
)
from kplane.controlplane_operator.pki.store import AUTHORITIES_SECRET
from kplane.provider import Client, NotFound
from kplane.provider.client.resources import NAMESPACES, SECRETS

__all__ = ["collect"]

_KINDS: Final = (CONTROL_PLANE_CLASSES, CONTROL_PLANES, CONTROL_PLANE_ENDPOINTS, CONTROL_PLANE_REGISTRATIONS)


async def collect(client: Client, *, namespace: str, etcd_secret: str) -> AsyncIterator[dict[str, Any]]:
    """Read the namespaces and keys of control planes, the keys of the shared etcd, and the objects of the five kinds.

    A namespace without keys is one of a control plane that is being made, or of an adopted one. A snapshot that is not
    completed has no file, and is left out. Raises ProviderError.
    """
    yield _stripped(await client.get(SECRETS, etcd_secret, namespace=namespace), kind="Secret", version="v1")
    for found in (await client.list(NAMESPACES, label_selector=CONTROL_PLANE_LABEL)).items:
        yield _stripped(found, kind="Namespace", version="v1")
        try:
            keys = await client.get(SECRETS, AUTHORITIES_SECRET, namespace=found["metadata"]["name"])
        except NotFound:
            continue
        yield _stripped(keys, kind="Secret", version="v1")
    for resource in _KINDS:
        for found in (await client.list(resource)).items:
            yield _stripped(found, kind=resource.kind, version=resource.api_version)
    try:
        snapshots = (await client.list(CONTROL_PLANE_SNAPSHOTS)).items
    except NotFound:
        return  # before the upgrade from a version without this kind
    for found in snapshots:
        if (location := (found.get("status") or {}).get("location")) is not None:
            yield _imported(found, location=location)


def _imported(found: dict[str, Any], *, location: str) -> dict[str, Any]:
    """Describe a snapshot for another management cluster, whose operator imports the file and keeps it."""
    stripped = _stripped(found, kind=CONTROL_PLANE_SNAPSHOTS.kind, version=CONTROL_PLANE_SNAPSHOTS.api_version)
    metadata = stripped["metadata"]
    annotations = {**metadata.get("annotations", {}), IMPORTED_FROM_ANNOTATION: location}
    return {
        **stripped,
        "metadata": {**metadata, "annotations": annotations},
        "spec": {**stripped["spec"], "deletionPolicy": str(DeletionPolicy.RETAIN)},
    }


def _stripped(found: dict[str, Any], *, kind: str, version: str) -> dict[str, Any]:
    metadata = {name: value for name, value in found["metadata"].items() if name != "managedFields"}
    return {**found, "apiVersion": version, "kind": kind, "metadata": metadata}
