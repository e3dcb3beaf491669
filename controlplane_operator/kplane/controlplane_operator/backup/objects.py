"""Objects of the management cluster that a backup needs beside the data of control planes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from kplane.api import DeletionPolicy
from kplane.api.names import CONTROL_PLANE_LABEL, IMPORTED_FROM_ANNOTATION
from kplane.controlplane_operator.credentials.key_records import KeyRecord
from kplane.controlplane_operator.credentials.store import AUTHORITIES_SECRET
from kplane.controlplane_operator.kinds import (
    CONTROL_PLANE_CLASSES,
    CONTROL_PLANE_ENDPOINTS,
    CONTROL_PLANE_REGISTRATIONS,
    CONTROL_PLANE_SNAPSHOTS,
    CONTROL_PLANES,
)
from kplane.controlplane_operator.watch.cache import Object
from kplane.pki.entries import data_of
from kplane.pki.errors import CredentialsInvalid
from kplane.pki.fingerprints import fingerprints_of
from kplane.provider import Client, NotFound
from kplane.provider.client.resources import NAMESPACES, SECRETS

__all__ = ["collect"]

_KINDS: Final = (CONTROL_PLANE_CLASSES, CONTROL_PLANES, CONTROL_PLANE_ENDPOINTS, CONTROL_PLANE_REGISTRATIONS)

_TRIES: Final = 3
"""Number of attempts. Steps of a rotation are minutes apart, so a second attempt meets no further step."""


async def collect(client: Client, *, namespace: str, etcd_secret: str) -> AsyncIterator[dict[str, Any]]:
    """Read the namespaces and keys of control planes, the keys of the shared etcd, and the objects of the five kinds.

    A namespace without keys belongs to a control plane that is being created, or that is adopted. A snapshot that is
    not completed has no file, and is left out. Raises ProviderError.
    """
    yield _stripped(await client.get(SECRETS, etcd_secret, namespace=namespace), kind="Secret", version="v1")
    for item in (await client.list(NAMESPACES, label_selector=CONTROL_PLANE_LABEL)).items:
        namespace_now, keys = await _with_keys(client, item)
        yield _stripped(namespace_now, kind="Namespace", version="v1")
        if keys is not None:
            yield _stripped(keys, kind="Secret", version="v1")
    for resource in _KINDS:
        for item in (await client.list(resource)).items:
            yield _stripped(item, kind=resource.kind, version=resource.api_version)
    try:
        snapshots = (await client.list(CONTROL_PLANE_SNAPSHOTS)).items
    except NotFound:
        return  # an upgrade from a version without this kind is not finished
    for item in snapshots:
        if (location := (item.get("status") or {}).get("location")) is not None:
            yield _imported(item, location=location)


async def _with_keys(client: Client, namespace: Object) -> tuple[Object, Object | None]:
    """Read the keys of a namespace, and the record that allows them.

    A step of a rotation may come between the two reads. The namespace is then read again after the Secret, because an
    operator records keys before it writes them. Keys that no record allows were exchanged by a user. The backup has
    their record too, which reveals the exchange after a restore.
    """
    name = namespace["metadata"]["name"]
    keys: Object | None = None
    for _ in range(_TRIES):
        try:
            secret = await client.get(SECRETS, AUTHORITIES_SECRET, namespace=name)
        except NotFound:
            return namespace, None
        keys = secret
        if _is_allowed(namespace, secret):
            break
        # List instead of get, because the RBAC of a backup Job only allows to list namespaces.
        for latest in (await client.list(NAMESPACES, field_selector=f"metadata.name={name}")).items:
            namespace = latest
        if _is_allowed(namespace, secret):
            break
    return namespace, keys


def _is_allowed(namespace: Object, keys: Object) -> bool:
    record = KeyRecord.of(namespace)
    try:
        return record is None or record.allows(fingerprints_of(data_of(keys)))
    except CredentialsInvalid:
        return True  # a damaged key has no fingerprint to compare


def _imported(found: dict[str, Any], *, location: str) -> dict[str, Any]:
    """Return a snapshot for another management cluster, whose operator imports and retains the file."""
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
