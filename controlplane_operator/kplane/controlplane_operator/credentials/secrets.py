"""Reads Secrets of the management cluster, and writes those of control planes where they differ."""

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
    """Return a Secret from what is watched, else from the API server; None where it does not exist.

    With `of`, what is watched counts only where it belongs to that very control plane: its end may be seen late, and
    nobody may get the keys of an earlier control plane of the same name. Raises as `read_secret`.
    """
    known = context.stores.secrets.get((namespace, name))
    if known is not None and (of is None or _owned(known, of)):
        return known
    return await read_secret(context, SecretReference(namespace=namespace, name=name), context.stores.allowed_secrets)


async def read_secret(context: OperatorContext, secret: SecretReference, store: Store) -> Object | None:
    """Return a Secret that a user named, from the store of what is watched, else from the API server.

    Raises ConditionError (SecretsNotReadable) if the operator has no right to read it, or no longer.
    """
    known = store.get((secret.namespace, secret.name))
    if known is not None and not context.secrets.is_lost(secret.namespace):
        return known
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
        if known is None:
            raise
        return known


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
    """Have a Secret carry exactly this, in the control plane's namespace if no other is given; nothing is written where
    it does. Entries that `never` names are removed. All other entries that are not in `data` are left alone.

    One that cannot be changed, because somebody made it immutable or of another type, is replaced.
    """
    namespace = namespace or management_namespace(control_plane.name)
    body = _body(
        control_plane,
        name=name,
        namespace=namespace,
        data=data,
        metadata={"annotations": dict(annotations or {}), "ownerReferences": [owner_reference(control_plane)]},
    )
    known = context.stores.secrets.get((namespace, name))
    if known is not None and _carries(known, body) and not set(never) & (known.get("data") or {}).keys():
        return
    # Nearly all are new, and to create one takes the API server half of what an apply takes.
    written = await _create(context, body) if known is None else None
    if written is None:
        try:
            written = await _change(context, body, never=never)
        except Invalid:
            await delete_secret(context, control_plane, name=name, namespace=namespace)
        if written is None:
            written = await context.client.create(SECRETS, body)
    context.stores.secrets.apply(written)


async def _create(context: OperatorContext, body: Object) -> Object | None:
    """Create the Secret; None if there is one."""
    try:
        return await context.client.create(SECRETS, body)
    except AlreadyExists:
        return None


async def _change(context: OperatorContext, body: Object, *, never: Collection[str]) -> Object | None:
    """Have the Secret carry what `body` says, without other entries that the operator wrote, or that `never` names.

    Returns None if there is no such Secret.

    Raises Conflict if it changes meanwhile, and Invalid if it cannot be changed.
    """
    metadata = body["metadata"]
    name, namespace = metadata["name"], metadata["namespace"]
    try:
        # With managedFields, which `get` leaves out.
        live = await context.client.request("GET", SECRETS.path(name, namespace=namespace))
        found = live["metadata"]
        ours = CONTROL_PLANES.api_version, CONTROL_PLANES.kind
        owners = [each for each in found.get("ownerReferences") or () if (each["apiVersion"], each["kind"]) != ours]
        manager = context.client.field_manager
        former = _written(live, "f:metadata", "f:annotations", manager=manager)
        changed = {
            "resourceVersion": found["resourceVersion"],
            "labels": metadata["labels"],
            "annotations": dict.fromkeys(former) | metadata["annotations"],
            "ownerReferences": [*owners, *metadata["ownerReferences"]],
        }
        data = dict.fromkeys(_written(live, "f:data", manager=manager) | set(never)) | body["data"]
        return await context.client.patch(
            SECRETS, name, {"metadata": changed, "type": body["type"], "data": data}, namespace=namespace
        )
    except NotFound:
        return None


def _written(secret: Object, *path: str, manager: str | None) -> set[str]:
    """Return the entries of a mapping that the manager wrote, as the API server notes."""
    names: set[str] = set()
    for entry in secret["metadata"].get("managedFields", ()):
        if entry.get("manager") == manager:
            owned = entry.get("fieldsV1") or {}
            for part in path:
                owned = owned.get(part) or {}
            names |= {each.removeprefix("f:") for each in owned if each.startswith("f:")}
    return names


async def create_lasting_secret(
    context: OperatorContext, control_plane: ControlPlane, *, name: str, data: Mapping[str, bytes]
) -> None:
    """Create a Secret that outlives its control plane, and a deletion of its namespace until `unprotect_secret`.

    Raises AlreadyExists, so that nothing is overwritten.
    """
    metadata = {**_lasting(control_plane), "finalizers": [PROTECTION_FINALIZER]}
    body = _body(control_plane, name=name, data=data, metadata=metadata)
    context.stores.secrets.apply(await context.client.create(SECRETS, body))


async def take_over_secret(context: OperatorContext, control_plane: ControlPlane, *, secret: Object) -> None:
    """Have a lasting Secret of the control plane's namespace be its own, and protected; nothing is written where it is.

    Raises Conflict where it was changed since it was read.
    """
    finalizers = secret["metadata"].get("finalizers") or []
    if not _owned(secret, control_plane) or PROTECTION_FINALIZER not in finalizers:
        wanted = list(dict.fromkeys([*finalizers, PROTECTION_FINALIZER]))
        await _patch_metadata(context, secret, {**_lasting(control_plane), "finalizers": wanted})


async def unprotect_secret(context: OperatorContext, secret: Object) -> None:
    """Let a lasting Secret be deleted by others too; nothing is written where it can be.

    Raises Conflict where it was changed since it was read.
    """
    finalizers = secret["metadata"].get("finalizers") or []
    if PROTECTION_FINALIZER in finalizers:
        left = [each for each in finalizers if each != PROTECTION_FINALIZER]
        with contextlib.suppress(NotFound):
            await _patch_metadata(context, secret, {"finalizers": left})


async def _patch_metadata(context: OperatorContext, secret: Object, metadata: dict[str, Any]) -> None:
    known = secret["metadata"]
    body = {"metadata": {**metadata, "resourceVersion": known["resourceVersion"]}}
    patched = await context.client.patch(SECRETS, known["name"], body, namespace=known["namespace"])
    if "deletionTimestamp" not in patched["metadata"] or patched["metadata"].get("finalizers"):
        context.stores.secrets.apply(patched)
    else:
        context.stores.secrets.remove(patched)


async def make_secret_last(context: OperatorContext, control_plane: ControlPlane, *, name: str) -> None:
    """Have a Secret that `write_secret` wrote, where it is there still, go with its namespace only."""
    body = {"metadata": {"ownerReferences": None, **_lasting(control_plane)}}
    namespace = management_namespace(control_plane.name)
    with contextlib.suppress(NotFound):
        async with unless_leaving(context.client, namespace):
            context.stores.secrets.apply(await context.client.patch(SECRETS, name, body, namespace=namespace))


async def replace_data(context: OperatorContext, secret: Object, *, data: Mapping[str, bytes]) -> Object:
    """Have a Secret carry this data and no other, in one write; returns it as it is then.

    Raises Conflict where it was changed since it was read.
    """
    metadata = secret["metadata"]
    encoded: dict[str, str | None] = dict.fromkeys(secret.get("data") or {})
    encoded |= {key: base64.b64encode(value).decode() for key, value in data.items()}
    body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "data": encoded}
    written = await context.client.patch(SECRETS, metadata["name"], body, namespace=metadata["namespace"])
    context.stores.secrets.apply(written)
    return written


async def delete_secret(
    context: OperatorContext, control_plane: ControlPlane, *, name: str, namespace: str | None = None
) -> None:
    """Have no Secret of this name, in the control plane's namespace if no other is given."""
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
    # Not an ownerReference, by which garbage collection would take what the data cannot be read without.
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
