"""Objects that a control plane brings along in the management cluster: its endpoint and its default registration."""

from __future__ import annotations

from typing import Any

from kplane.api import ControlPlane, ControlPlaneClass
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.namespaces import owner_of
from kplane.controlplane_operator.controlplanes.partial import PartialEndpoint
from kplane.controlplane_operator.endpoints.addresses import Addresses
from kplane.controlplane_operator.kinds import CONTROL_PLANE_ENDPOINTS, CONTROL_PLANE_REGISTRATIONS
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.reasons import Reason
from kplane.provider import AlreadyExists, Resource

__all__ = ["ensure_default_registration", "ensure_endpoint"]


async def ensure_endpoint(context: OperatorContext, control_plane: ControlPlane, *, addresses: Addresses) -> None:
    """Have the ControlPlaneEndpoint of a control plane that kplane runs say where it is.

    Raises ConditionError (EndpointInvalid) where somebody else made one of that name: it is not overwritten.
    """
    name = control_plane.name
    store = context.stores.endpoints
    spec = {"endpoint": addresses.internal, "externalEndpoint": addresses.external, "joinEndpoint": addresses.join}
    known = store.get(("", name))
    if known is None:
        try:
            made = await context.client.create(CONTROL_PLANE_ENDPOINTS, _owned(store.resource, control_plane, spec))
        except AlreadyExists:
            made = await context.client.get(CONTROL_PLANE_ENDPOINTS, name)
        store.apply(made)
        known = made
    owners = [owner.uid for owner in PartialEndpoint.of(known).metadata.owner_references]
    if control_plane.metadata.uid not in owners:
        raise ConditionError(
            Reason.ENDPOINT_INVALID,
            f"ControlPlaneEndpoint {name} exists and does not belong to this control plane, so it is not overwritten;"
            " delete it, or give the control plane another name",
        )
    if any(known["spec"].get(field) != url for field, url in spec.items()):
        store.apply(await context.client.apply(CONTROL_PLANE_ENDPOINTS, _owned(store.resource, control_plane, spec)))


async def ensure_default_registration(
    context: OperatorContext, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None
) -> None:
    """Have a registration of the control plane's name exist where the class wants one; none is ever changed."""
    services = chosen.spec.default_services if chosen is not None else []
    store = context.stores.registrations
    if not services or store.get(("", control_plane.name)) is not None:
        return
    spec = {"controlPlaneRef": {"name": control_plane.name}, "services": [str(service) for service in services]}
    try:
        store.apply(
            await context.client.create(CONTROL_PLANE_REGISTRATIONS, _owned(store.resource, control_plane, spec))
        )
    except AlreadyExists:
        return


def _owned(resource: Resource, control_plane: ControlPlane, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": control_plane.name, "ownerReferences": [owner_of(control_plane)]},
        "spec": spec,
    }
