"""Admission webhooks and policies of tenants that refuse or delay a write: detection, and deletion on request.

The operator deletes no webhook or policy by itself, because they are the tenant's. The owner of a control plane may
have no credentials for it, and can name one in an annotation of the ControlPlane. The operator deletes as an
administrator. So it acts only if the class gives owners that role: the annotation must not give rights that
`auth.defaultRole` withholds.
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
"""Writes of the operator inside a control plane."""
_LEASE_WRITE: Final = Write(resource=LEASES, namespace="kube-system")
"""Write of the Lease by which controllers run, see the Lease of mcm."""
_BY_KIND: Final = {resource.kind: resource for resource in CONFIGURATIONS}
_POINTER: Final = f"/metadata/annotations/{DELETE_ADMISSION_ANNOTATION.replace('/', '~1')}"
_ALL_RIGHTS: Final = AuthSpec().default_role
_SHOWN: Final = 253
_LOOK_SECONDS: Final = 5.0
"""Maximum time of a search, because an API server could return endless lists."""


async def tenant_failure(client: Client, what: str, error: ProviderError) -> ConditionError:
    """Return the error of `tenant_error`, with the webhook configurations and policies that may have caused it.

    `client` is an administrator of the control plane. The search runs only if the error names a webhook, or if a write
    timed out.
    """
    return tenant_error(what, error, guards=await blamed_guards(client, error, *_WRITES))


@contextlib.asynccontextmanager
async def tenant_errors(client: Client, what: str) -> AsyncIterator[None]:
    """Convert a failure of the control plane of `client` into a ConditionError, see `tenant_failure`."""
    try:
        yield
    except ProviderError as error:
        raise await tenant_failure(client, what, error) from error


async def lease_guards(client: Client) -> tuple[Guard, ...] | None:
    """Return the webhooks that admit the Leases of controllers; None if the control plane does not answer."""
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            return tuple(await guards_of(client, _LEASE_WRITE))
    except (ProviderError, TimeoutError):
        return None


def is_deletion_named(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> bool:
    """Return whether the owner may and does request the deletion of a configuration or policy inside the control plane.

    `chosen` is the class of the control plane, which decides whether the owner may do so.
    """
    return _named(control_plane) is not None and _gives_all_rights(chosen)


async def delete_named(context: OperatorContext, control_plane: ControlPlane, client: Client) -> ControlPlane:
    """Delete the configuration or policy that the owner names, and then the annotation. Returns the control plane.

    Call this only if `is_deletion_named` is true. `client` is an administrator of the control plane. Raises
    ConditionError if its API server refuses, and ProviderError if the management cluster refuses.
    """
    target = _named(control_plane)
    if target is None:
        return control_plane
    resource, name = target
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
    # The annotation is removed after the deletion, so that an operator that is killed in between repeats the deletion.
    value = control_plane.metadata.annotations[DELETE_ADMISSION_ANNOTATION]
    removal = [{"op": "test", "path": _POINTER, "value": value}, {"op": "remove", "path": _POINTER}]
    with contextlib.suppress(Invalid, NotFound):  # the annotation has changed, or the control plane is gone
        stored = await context.client.json_patch(CONTROL_PLANES, control_plane.name, removal)
        return control_plane.model_copy(update={"metadata": as_recorded(stored).metadata})
    return control_plane


def refused_deletion(
    control_plane: ControlPlane, *, chosen: ControlPlaneClass | None, asleep: bool = False
) -> list[str]:
    """Return a sentence that explains why the annotation has no effect. Returns [] without an annotation, or if it has.

    `asleep`: no API server runs, so the operator cannot search for the object now.
    """
    value = control_plane.metadata.annotations.get(DELETE_ADMISSION_ANNOTATION)
    if value is None:
        return []
    message = f"annotation {DELETE_ADMISSION_ANNOTATION} is not acted on"
    if _named(control_plane) is None:
        return [f"{message}: {value[:_SHOWN]!r} is no KIND/NAME; KIND is one of {', '.join(_BY_KIND)}"]
    if chosen is not None and not _gives_all_rights(chosen):
        lacks = f"auth.defaultRole of ControlPlaneClass {chosen.name} is {chosen.spec.auth.default_role}"
        return [f"{message}: {lacks}; have the administrator of the class delete {value}, or set {_ALL_RIGHTS} there"]
    if asleep:
        wake = f"set annotation {WAKE_REQUESTED_ANNOTATION} to the present time to wake it"
        return [f"{message} yet: control plane {control_plane.name} sleeps, and no API server runs; {wake}"]
    return []


def _gives_all_rights(chosen: ControlPlaneClass | None) -> bool:
    return chosen is None or chosen.spec.auth.default_role == _ALL_RIGHTS


def _named(control_plane: ControlPlane) -> tuple[Resource, str] | None:
    kind, _, name = control_plane.metadata.annotations.get(DELETE_ADMISSION_ANNOTATION, "").partition("/")
    resource = _BY_KIND.get(kind)
    return (resource, name) if resource is not None and DNS_SUBDOMAIN.fullmatch(name) else None
