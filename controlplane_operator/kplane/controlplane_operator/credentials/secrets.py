"""Reads Secrets of the management cluster, and writes Secrets of control planes if their content differs."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Collection, Mapping
from typing import Any

from kplane.api import ControlPlane, SecretReference
from kplane.api.names import (
    CONTROL_PLANE_LABEL,
    PROTECTION_FINALIZER,
    UID_ANNOTATION,
    label_value,
    management_namespace,
)
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.kinds import CONTROL_PLANES, owner_reference
from kplane.controlplane_operator.watch.cache import Object, Store
from kplane.provider import AlreadyExists, Invalid, NotFound, ProviderError
from kplane.provider.client.resources import SECRETS
from kplane.provider.errors import Forbidden
from kplane.workloads.pods import unless_leaving

__all__ = [
    "create_lasting_secret",
    "delete_secret",
    "find_secret",
    "make_secret_last",
    "read_secret",
    "replace_data",
    "take_over_secret",
    "unprotect_secret",
    "write_secret",
]


async def find_secret(
    context: OperatorContext, *, namespace: str, name: str, of: ControlPlane | None = None
) -> Object | None:
    """Return a Secret from the cache, or else from the API server; None if it does not exist.

    With `of`, a cached Secret only counts if it belongs to this control plane. The cache may show Secrets of a deleted
    control plane with the same name, and no control plane may get the keys of another. Raises as `read_secret`.
    """
    cached = context.stores.secrets.get((namespace, name))
    if cached is not None and (of is None or _owned(cached, of)):
        return cached
    return await read_secret(context, SecretReference(namespace=namespace, name=name), context.stores.allowed_secrets)


async def read_secret(context: OperatorContext, secret: SecretReference, store: Store) -> Object | None:
    """Return a Secret that a user named, from the cache `store` or the API server; None if it does not exist.

    Raises ConditionError (SecretsNotReadable) if the operator has no right to read it, or lost that right. Raises
    ProviderError if the API server fails, unless the cache has the Secret.
    """
    cached = store.get((secret.namespace, secret.name))
    if cached is not None and not context.secrets.is_lost(secret.namespace):
        return cached
    try:
        return await context.client.get(SECRETS, secret.name, namespace=secret.namespace)
    except NotFound:
        return None
    except Forbidden as error:
        failure = await context.secrets.forbidden(secret, error)
        if failure is None:
            return None
        raise failure from error
    except ProviderError:
        if cached is None:
            raise
        return cached


async def write_secret(
    context: OperatorContext,
    control_plane: ControlPlane,
    *,
    name: str,
    data: Mapping[str, bytes],
    annotations: Mapping[str, str] | None = None,
    namespace: str | None = None,
    never: Collection[str] = (),
) -> None:
    """Create or update the Secret, by default in the control plane's namespace.

    Skips the write if the content is equal. Removes the entries that `never` names, and other entries that the operator
    wrote earlier. Entries of other clients stay. A Secret that cannot be changed, because it is immutable or has
    another type, is replaced.
    """
    namespace = namespace or management_namespace(control_plane.name)
    body = _body(
        control_plane,
        name=name,
        namespace=namespace,
        data=data,
        metadata={"annotations": dict(annotations or {}), "ownerReferences": [owner_reference(control_plane)]},
    )
    cached = context.stores.secrets.get((namespace, name))
    if cached is not None and _carries(cached, body) and not set(never) & (cached.get("data") or {}).keys():
        return
    # Create first: nearly all Secrets are new, and for the API server a create costs half as much as an apply.
    if cached is None and await _create(context, body):
        return
    try:
        changed = await _change(context, body, never=never)
    except Invalid:
        await delete_secret(context, control_plane, name=name, namespace=namespace)
        changed = False
    if not changed:
        await context.client.create(SECRETS, body)


async def _create(context: OperatorContext, body: Object) -> bool:
    """Create the Secret; return whether it did not exist before."""
    try:
        await context.client.create(SECRETS, body)
    except AlreadyExists:
        return False
    return True


async def _change(context: OperatorContext, body: Object, *, never: Collection[str]) -> bool:
    """Update the Secret to `body`; return whether it exists.

    Removes other entries that the operator wrote earlier, and the entries that `never` names. Raises Conflict if
    another client changes the Secret meanwhile, and Invalid if the Secret cannot be changed.
    """
    metadata = body["metadata"]
    name, namespace = metadata["name"], metadata["namespace"]
    try:
        # A plain request, because `get` omits managedFields.
        live = await context.client.request("GET", SECRETS.path(name, namespace=namespace))
        live_metadata = live["metadata"]
        ours = CONTROL_PLANES.api_version, CONTROL_PLANES.kind
        owners = [
            owner
            for owner in live_metadata.get("ownerReferences") or ()
            if (owner["apiVersion"], owner["kind"]) != ours
        ]
        manager = context.client.field_manager
        former = _written(live, "f:metadata", "f:annotations", manager=manager)
        changed = {
            "resourceVersion": live_metadata["resourceVersion"],
            "labels": metadata["labels"],
            "annotations": dict.fromkeys(former) | metadata["annotations"],
            "ownerReferences": [*owners, *metadata["ownerReferences"]],
        }
        data = dict.fromkeys(_written(live, "f:data", manager=manager) | set(never)) | body["data"]
        await context.client.patch(
            SECRETS, name, {"metadata": changed, "type": body["type"], "data": data}, namespace=namespace
        )
    except NotFound:
        return False
    return True


def _written(secret: Object, *path: str, manager: str | None) -> set[str]:
    """Return the entries of a mapping that the manager wrote, according to managedFields."""
    names: set[str] = set()
    for entry in secret["metadata"].get("managedFields", ()):
        if entry.get("manager") == manager:
            owned = entry.get("fieldsV1") or {}
            for part in path:
                owned = owned.get(part) or {}
            names |= {field.removeprefix("f:") for field in owned if field.startswith("f:")}
    return names


async def create_lasting_secret(
    context: OperatorContext, control_plane: ControlPlane, *, name: str, data: Mapping[str, bytes]
) -> None:
    """Create a Secret that outlives its control plane, and the deletion of its namespace until `unprotect_secret`.

    Raises AlreadyExists instead of an overwrite.
    """
    metadata = {**_lasting(control_plane), "finalizers": [PROTECTION_FINALIZER]}
    body = _body(control_plane, name=name, data=data, metadata=metadata)
    await context.client.create(SECRETS, body)


async def take_over_secret(context: OperatorContext, control_plane: ControlPlane, *, secret: Object) -> None:
    """Make a lasting Secret belong to the control plane, and protect it. Skips the write if both are so already.

    Raises Conflict if the Secret has changed since it was read.
    """
    finalizers = secret["metadata"].get("finalizers") or []
    if not _owned(secret, control_plane) or PROTECTION_FINALIZER not in finalizers:
        desired = list(dict.fromkeys([*finalizers, PROTECTION_FINALIZER]))
        await _patch_metadata(context, secret, {**_lasting(control_plane), "finalizers": desired})


async def unprotect_secret(context: OperatorContext, secret: Object) -> None:
    """Remove the protection of a lasting Secret, so that other clients can delete it. Skips the write if it has none.

    Raises Conflict if the Secret has changed since it was read.
    """
    finalizers = secret["metadata"].get("finalizers") or []
    if PROTECTION_FINALIZER in finalizers:
        remaining = [finalizer for finalizer in finalizers if finalizer != PROTECTION_FINALIZER]
        with contextlib.suppress(NotFound):
            await _patch_metadata(context, secret, {"finalizers": remaining})


async def _patch_metadata(context: OperatorContext, secret: Object, metadata: dict[str, Any]) -> None:
    present = secret["metadata"]
    body = {"metadata": {**metadata, "resourceVersion": present["resourceVersion"]}}
    await context.client.patch(SECRETS, present["name"], body, namespace=present["namespace"])


async def make_secret_last(context: OperatorContext, control_plane: ControlPlane, *, name: str) -> None:
    """Let a Secret of `write_secret` outlive its control plane, until its namespace is deleted.

    Does nothing if the Secret no longer exists.
    """
    body = {"metadata": {"ownerReferences": None, **_lasting(control_plane)}}
    namespace = management_namespace(control_plane.name)
    with contextlib.suppress(NotFound):
        async with unless_leaving(context.client, namespace):
            await context.client.patch(SECRETS, name, body, namespace=namespace)


async def replace_data(context: OperatorContext, secret: Object, *, data: Mapping[str, bytes]) -> Object:
    """Replace all data of a Secret in a single write, and return the Secret.

    Raises Conflict if the Secret has changed since it was read.
    """
    metadata = secret["metadata"]
    encoded: dict[str, str | None] = dict.fromkeys(secret.get("data") or {})
    encoded |= {key: base64.b64encode(value).decode() for key, value in data.items()}
    body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "data": encoded}
    return await context.client.patch(SECRETS, metadata["name"], body, namespace=metadata["namespace"])


async def delete_secret(
    context: OperatorContext, control_plane: ControlPlane, *, name: str, namespace: str | None = None
) -> None:
    """Delete the Secret if it exists, by default in the control plane's namespace."""
    namespace = namespace or management_namespace(control_plane.name)
    with contextlib.suppress(NotFound):
        async with unless_leaving(context.client, namespace):
            await context.client.delete(SECRETS, name, namespace=namespace)


def _body(
    control_plane: ControlPlane,
    *,
    name: str,
    namespace: str | None = None,
    data: Mapping[str, bytes],
    metadata: Mapping[str, Any],
) -> Object:
    return {
        "metadata": {
            "name": name,
            "namespace": namespace or management_namespace(control_plane.name),
            "labels": {CONTROL_PLANE_LABEL: label_value(control_plane.name)},
            **metadata,
        },
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def _lasting(control_plane: ControlPlane) -> dict[str, Any]:
    # An annotation instead of an ownerReference: garbage collection must not delete keys that the data depend on.
    return {"annotations": {UID_ANNOTATION: control_plane.metadata.uid}}


def _owned(secret: Object, control_plane: ControlPlane) -> bool:
    metadata, uid = secret["metadata"], control_plane.metadata.uid
    owners = metadata.get("ownerReferences") or ()
    return uid == (metadata.get("annotations") or {}).get(UID_ANNOTATION) or any(
        owner.get("uid") == uid for owner in owners
    )


def _carries(known: Object, wanted: Object) -> bool:
    metadata, data = known["metadata"], known.get("data") or {}
    return (
        all(data.get(key) == value for key, value in wanted["data"].items())
        and all((metadata.get("labels") or {}).get(k) == v for k, v in wanted["metadata"]["labels"].items())
        and all((metadata.get("annotations") or {}).get(k) == v for k, v in wanted["metadata"]["annotations"].items())
        and _owners(wanted) <= _owners(known)
        and "deletionTimestamp" not in metadata
    )


def _owners(secret: Object) -> set[str]:
    return {owner["uid"] for owner in secret["metadata"].get("ownerReferences") or ()}
