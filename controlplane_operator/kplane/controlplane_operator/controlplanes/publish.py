"""Publication of a running control plane: its endpoint, Secrets, default registration and status fields."""

from __future__ import annotations

from typing import Any, Final

from kplane.api import ControlPlane, ControlPlaneClass, SecretReference
from kplane.api.names import (
    CA_KEY,
    FINALIZER,
    KUBECONFIG_EXTERNAL_KEY,
    KUBECONFIG_KEY,
    controllers_secret_name,
    kubeconfig_secret_name,
    management_namespace,
)
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.base import Provision
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.credentials import Credentials
from kplane.controlplane_operator.controlplanes.rotator import rotation_status
from kplane.controlplane_operator.credentials.secrets import write_secret
from kplane.controlplane_operator.endpoints.addresses import Addresses
from kplane.controlplane_operator.kinds import CONTROL_PLANE_ENDPOINTS, CONTROL_PLANE_REGISTRATIONS, owner_reference
from kplane.controlplane_operator.registrations.service_claims import default_services
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.partial import PartialEndpoint
from kplane.pki.issuing import Identity
from kplane.pki.kubeconfig import render_kubeconfig
from kplane.provider import AlreadyExists, Resource

__all__ = ["ensure_default_registration", "ensure_endpoint", "published_fields", "served_revision", "write_secrets"]

_REVISION_STEP: Final = 10_000
"""Number of revisions after which the status records the served revision anew."""


async def ensure_endpoint(context: OperatorContext, control_plane: ControlPlane, *, addresses: Addresses) -> None:
    """Create or update the ControlPlaneEndpoint of a control plane whose API server kplane runs.

    Raises ConditionError (EndpointInvalid) if an endpoint of this name exists and the control plane does not own it.
    Such an endpoint is not overwritten.
    """
    name = control_plane.name
    store = context.stores.endpoints
    spec = {"endpoint": addresses.internal, "externalEndpoint": addresses.external, "joinEndpoint": addresses.join}
    existing = store.get(("", name))
    if existing is None:
        try:
            existing = await context.client.create(CONTROL_PLANE_ENDPOINTS, _owned(store.resource, control_plane, spec))
        except AlreadyExists:
            existing = await context.client.get(CONTROL_PLANE_ENDPOINTS, name)
            store.apply(existing)
    owners = [owner.uid for owner in PartialEndpoint.of(existing).metadata.owner_references]
    if control_plane.metadata.uid not in owners:
        raise ConditionError(
            Reason.ENDPOINT_INVALID,
            f"ControlPlaneEndpoint {name} exists and does not belong to this control plane, so it is not overwritten;"
            " delete it, or give the control plane another name",
        )
    if any(existing["spec"].get(field) != url for field, url in spec.items()):
        await context.client.apply(CONTROL_PLANE_ENDPOINTS, _owned(store.resource, control_plane, spec), force=True)


async def ensure_default_registration(
    context: OperatorContext, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None
) -> None:
    """Create the registration of the control plane's name for default services that no other registration provides.

    An existing registration of this name is never changed.
    """
    store = context.stores.registrations
    services = default_services(control_plane, chosen=chosen, stores=context.stores)
    if not services or store.get(("", control_plane.name)) is not None:
        return
    spec = {"controlPlaneRef": {"name": control_plane.name}, "services": [str(service) for service in services]}
    owned = _owned(store.resource, control_plane, spec)
    owned["metadata"]["finalizers"] = [FINALIZER]
    try:
        await context.client.create(CONTROL_PLANE_REGISTRATIONS, owned)
    except AlreadyExists:
        return


async def write_secrets(
    context: OperatorContext, control_plane: ControlPlane, *, provision: Provision, credentials: Credentials
) -> None:
    """Write the Secrets with the kubeconfigs of the administrator and of the controllers."""
    ca, gateway = provision.administrator.ca_data, context.gateway
    trust = {CA_KEY: ca} if ca is not None else {}

    def kubeconfig(address: str, identity: Identity, user: str) -> bytes:
        trusted = gateway.ca if gateway is not None and gateway.serves(address) else ca
        server, name = gateway.connection(address) if gateway is not None else (address, None)
        return render_kubeconfig(
            server=server,
            tls_server_name=name,
            ca=trusted,
            user=user,
            token=identity.token,
            client=identity.client,
            # The proxy is used only with the internal address: clients of the external address may not reach it.
            proxy=provision.administrator.proxy if address == addresses.internal else None,
        )

    addresses, admin, controllers = provision.addresses, credentials.admin, credentials.controllers
    await write_secret(
        context,
        control_plane,
        name=kubeconfig_secret_name(control_plane.name),
        data={
            KUBECONFIG_KEY: kubeconfig(addresses.internal, admin, "admin"),
            KUBECONFIG_EXTERNAL_KEY: kubeconfig(addresses.external, admin, "admin"),
            **trust,
        },
        annotations=admin.annotations(),
    )
    keys = {}
    if provision.authorities is not None:
        keys = {
            "sa.key": provision.authorities.service_account_key,
            "signing-ca.crt": provision.authorities.client.certificate,
            "signing-ca.key": provision.authorities.client.key,
        }
    await write_secret(
        context,
        control_plane,
        name=controllers_secret_name(control_plane.name),
        data={KUBECONFIG_KEY: kubeconfig(addresses.internal, controllers, "controllers"), **trust, **keys},
        annotations=controllers.annotations(),
    )


def published_fields(control_plane: ControlPlane, *, provision: Provision, credentials: Credentials) -> dict[str, Any]:
    """Return the status fields that clients need for access, such as addresses and Secrets."""
    namespace = management_namespace(control_plane.name)
    return {
        "endpoint": provision.addresses.internal,
        "endpoints": provision.addresses.published(),
        "kubeconfig_secret_ref": SecretReference(name=kubeconfig_secret_name(control_plane.name), namespace=namespace),
        "controllers_secret_ref": SecretReference(
            name=controllers_secret_name(control_plane.name), namespace=namespace
        ),
        # The former version stays in the status while API servers of two versions answer.
        "version": (None if provision.settled else control_plane.status.version) or credentials.version,
        "credentials_expire_at": credentials.admin.expires_at,
        "cluster_uid": credentials.cluster_uid or control_plane.status.cluster_uid,
        "data_identity": provision.data_identity or control_plane.status.data_identity,
        "served_revision": served_revision(control_plane, provision.revision),
        "rotation": rotation_status(provision.authorities),
    }


def served_revision(control_plane: ControlPlane, revision: int | None) -> int | None:
    """Return the highest served revision to record.

    Without steps, each pass would write the status anew. A lower revision is that of another etcd, such as after an
    accepted loss.
    """
    recorded = control_plane.status.served_revision
    if revision is None or (recorded is not None and revision < recorded + _REVISION_STEP):
        return recorded
    return revision


def _owned(resource: Resource, control_plane: ControlPlane, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": control_plane.name, "ownerReferences": [owner_reference(control_plane)]},
        "spec": spec,
    }
