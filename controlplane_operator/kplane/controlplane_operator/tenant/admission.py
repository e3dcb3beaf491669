"""Admission webhooks and policies of tenants: which refuse or hold up a write, and their deletion on request.

The operator deletes none by itself: they are the tenant's. The owner of a control plane may have no credentials for it,
and names one in an annotation of the ControlPlane. The operator deletes as an administrator. So it acts only if the
class gives owners that role: the annotation is no way to rights that `auth.defaultRole` withholds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from kplane.api import AuthSpec, ControlPlane, ControlPlaneClass
from kplane.api.names import DELETE_ADMISSION_ANNOTATION, WAKE_REQUESTED_ANNOTATION
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.status.errors import ConditionError, tenant_error
from kplane.controlplane_operator.status.partial import as_recorded
from kplane.controlplane_operator.tenant.bootstrap import TENANT_NAMESPACE
from kplane.provider import Client, Invalid, NotFound, ProviderError, Resource
from kplane.provider.client.admission import CONFIGURATIONS, Guard, Write, blamed_guards, guards_of
from kplane.provider.client.resources import CLUSTER_ROLE_BINDINGS, DNS_SUBDOMAIN, LEASES, SERVICE_ACCOUNTS

__all__ = ["delete_named", "is_deletion_named", "lease_guards", "refused_deletion", "tenant_errors", "tenant_failure"]

_WRITES: Final = (
    Write(resource=SERVICE_ACCOUNTS, namespace=TENANT_NAMESPACE, operations=frozenset({"CREATE", "UPDATE", "DELETE"})),
    Write(resource=CLUSTER_ROLE_BINDINGS, operations=frozenset({"CREATE", "UPDATE", "DELETE"})),
)
"""What the operator writes inside a control plane."""
_LEASE_WRITE: Final = Write(resource=LEASES, namespace="kube-system")
"""By which controllers run, see the Lease of mcm."""
_BY_KIND: Final = {resource.kind: resource for resource in CONFIGURATIONS}
_POINTER: Final = f"/metadata/annotations/{DELETE_ADMISSION_ANNOTATION.replace('/', '~1')}"
_ALL_RIGHTS: Final = AuthSpec().default_role
_SHOWN: Final = 253
_LOOK_SECONDS: Final = 5.0
"""An API server with lists without end does not hold up the operator for longer."""


async def tenant_failure(client: Client, what: str, error: ProviderError) -> ConditionError:
    """Return what `tenant_error` does, with the webhook configurations and policies that may have caused the error.

    `client` is an administrator of the control plane. It asks only if a webhook is named, or a write ran out of time.
    """
    return tenant_error(what, error, guards=await blamed_guards(client, error, *_WRITES))


@contextlib.asynccontextmanager
async def tenant_errors(client: Client, what: str) -> AsyncIterator[None]:
    """Turn a failure of the control plane of `client` into a ConditionError, see `tenant_failure`."""
    try:
        yield
    except ProviderError as error:
        raise await tenant_failure(client, what, error) from error


async def lease_guards(client: Client) -> tuple[Guard, ...] | None:
    """Return the webhooks that judge the Leases of controllers; None if the control plane does not tell."""
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            return tuple(await guards_of(client, _LEASE_WRITE))
    except (ProviderError, TimeoutError):
        return None


def is_deletion_named(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> bool:
    """Tell whether the owner of a control plane names a configuration or a policy that is to be deleted inside.

    `chosen` is its class, which decides whether the owner may do that.
    """
    return _named(control_plane) is not None and _gives_all_rights(chosen)


async def delete_named(context: OperatorContext, control_plane: ControlPlane, client: Client) -> ControlPlane:
    """Delete the configuration or policy that the owner names, then remove the annotation; returns the control plane.

    Call it only if `is_deletion_named` allows it.

    `client` is an administrator of the control plane. Raises ConditionError if its API server refuses, and
    ProviderError if the management cluster does.
    """
    named = _named(control_plane)
    if named is None:
        return control_plane
    resource, name = named
    async with tenant_errors(
        client, f"deleting {resource.kind} {name}, as annotation {DELETE_ADMISSION_ANNOTATION} asks"
    ):
        try:
            await client.delete(resource, name)
        except NotFound:
            message = f"{resource.kind} {name} is not inside the control plane, although its annotation names it"
            context.events.record(control_plane, reason="AdmissionNotFound", message=message, warning=True)
        else:
            message = f"{resource.kind} {name} is deleted inside the control plane, as its annotation asked"
            context.events.record(control_plane, reason="AdmissionDeleted", message=message)
    # After the deletion: an operator that ends in between deletes once more, and forgets nothing.
    value = control_plane.metadata.annotations[DELETE_ADMISSION_ANNOTATION]
    removal = [{"op": "test", "path": _POINTER, "value": value}, {"op": "remove", "path": _POINTER}]
    with contextlib.suppress(Invalid, NotFound):  # it names another one by now, or is gone
        stored = await context.client.json_patch(CONTROL_PLANES, control_plane.name, removal)
        context.stores.control_planes.apply(stored)
        return control_plane.model_copy(update={"metadata": as_recorded(stored).metadata})
    return control_plane


def refused_deletion(
    control_plane: ControlPlane, *, chosen: ControlPlaneClass | None, asleep: bool = False
) -> list[str]:
    """Say, in a sentence, why the annotation has no effect; nothing if there is none, or it has.

    `asleep` tells whether no API server runs, so that the operator cannot look for the object now.
    """
    value = control_plane.metadata.annotations.get(DELETE_ADMISSION_ANNOTATION)
    if value is None:
        return []
    said = f"annotation {DELETE_ADMISSION_ANNOTATION} is not acted on"
    if _named(control_plane) is None:
        return [f"{said}: {value[:_SHOWN]!r} is no KIND/NAME; KIND is one of {', '.join(_BY_KIND)}"]
    if chosen is not None and not _gives_all_rights(chosen):
        lacks = f"auth.defaultRole of ControlPlaneClass {chosen.name} is {chosen.spec.auth.default_role}"
        return [f"{said}: {lacks}; have the administrator of the class delete {value}, or set {_ALL_RIGHTS} there"]
    if asleep:
        wake = f"set annotation {WAKE_REQUESTED_ANNOTATION} to the present time to wake it"
        return [f"{said} yet: control plane {control_plane.name} sleeps, and no API server runs; {wake}"]
    return []


def _gives_all_rights(chosen: ControlPlaneClass | None) -> bool:
    return chosen is None or chosen.spec.auth.default_role == _ALL_RIGHTS


def _named(control_plane: ControlPlane) -> tuple[Resource, str] | None:
    kind, _, name = control_plane.metadata.annotations.get(DELETE_ADMISSION_ANNOTATION, "").partition("/")
    resource = _BY_KIND.get(kind)
    return (resource, name) if resource is not None and DNS_SUBDOMAIN.fullmatch(name) else None
