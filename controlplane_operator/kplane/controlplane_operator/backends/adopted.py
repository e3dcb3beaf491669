"""Adopted control planes: an address, and credentials for it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from kplane.api import ControlPlane, ControlPlaneEndpoint, DeletionPolicy
from kplane.api.addresses import normalized_address
from kplane.api.names import controllers_secret_name, kubeconfig_secret_name, management_namespace
from kplane.controlplane_operator.backends.base import Provision
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.endpoints.addresses import Addresses, addresses_of
from kplane.controlplane_operator.endpoints.credentials import EndpointCredentials, check_trust
from kplane.controlplane_operator.pki.kubeconfig import config_of
from kplane.controlplane_operator.pki.secrets import find_secret
from kplane.controlplane_operator.reasons import Reason
from kplane.controlplane_operator.status.errors import ConditionError, tenant_error
from kplane.controlplane_operator.status.partial import validated_endpoint
from kplane.controlplane_operator.tenant.client import tenant_client
from kplane.controlplane_operator.tenant.revocation import revoke_as_controllers, revoke_issued
from kplane.data import Usage
from kplane.provider import ClusterConfig, ProviderError
from kplane.provider.errors import KubeconfigError, Unauthorized

__all__ = ["AdoptedProvisioner", "revoke_as_published"]

_REVOKE_SECONDS: Final = 20.0
"""So long after the deletion was asked for it is tried to take our identities back."""


class AdoptedProvisioner:
    """Adopts an API server by its ControlPlaneEndpoint."""

    def __init__(self, context: OperatorContext, *, default_credentials: ClusterConfig | None) -> None:
        """`default_credentials` are for endpoints that name no Secret themselves."""
        self._context = context
        self._credentials = EndpointCredentials(context, default=default_credentials)

    def address(self, control_plane: ControlPlane) -> str | None:
        """Name the address that the endpoint leads to."""
        try:
            return normalized_address(self._addresses(control_plane).internal)
        except ConditionError:
            return None

    async def ensure(self, control_plane: ControlPlane) -> Provision:
        """Find address and credentials; the address is checked before any credential is used."""
        endpoint = self._endpoint(control_plane)
        addresses = addresses_of(endpoint, control_plane=control_plane)
        credentials = await self._credentials.of(endpoint)
        for url in (addresses.internal, addresses.external, addresses.join):
            check_trust(credentials, url=url)
        try:
            administrator = credentials.with_server(addresses.internal)
        except KubeconfigError as error:
            raise ConditionError(Reason.ENDPOINT_INVALID, f"ControlPlaneEndpoint {endpoint.name}: {error}") from error
        return Provision(addresses, administrator=administrator, authorities=None)

    async def has_data(self, control_plane: ControlPlane) -> bool:  # noqa: ARG002 - of none
        """Return False: the data stay with the API server, which kplane does not run."""
        return False

    async def volume(self, control_plane: ControlPlane) -> str | None:  # noqa: ARG002 - of none
        """Return None, because no data are in the namespace: kplane does not have them."""
        return None

    async def unprotect(self, control_plane: ControlPlane) -> None:
        """Do nothing: no data are in the namespace."""

    def usage(self, uid: str) -> Usage | None:  # noqa: ARG002 - of none
        """Return None: it keeps nothing in the shared etcd."""
        return None

    def let_go(self, uid: str) -> None:
        """It has nothing that is repaired between two calls of `ensure`."""

    async def take_over(self, control_plane: ControlPlane, *, former: str) -> None:
        """There is nothing that an earlier control plane had access to."""

    async def shut_down(self, control_plane: ControlPlane) -> None:
        """Take our identities back, with the credentials of the endpoint or else with what was published."""
        try:
            await self._revoke_issued(control_plane)
        except ConditionError as failure:
            if not _gives_up(control_plane):
                raise
            self._context.events.record(
                control_plane,
                reason="CredentialsNotRevoked",
                message=f"issued credentials stay valid in the control plane until they expire: {failure.message}",
                warning=True,
            )

    async def settle(self, control_plane: ControlPlane, *, policy: DeletionPolicy) -> None:
        """Leave the data, whatever the policy says, because they are not ours."""
        if policy is DeletionPolicy.DESTROY:
            self._context.events.record(
                control_plane,
                reason=Reason.DATA_RETAINED,
                message="the data stay: kplane does not run the API server, so Destroy does not reach them",
            )

    async def _revoke_issued(self, control_plane: ControlPlane) -> None:
        try:
            provision = await self.ensure(control_plane)
            # Not at what the endpoint says by now, which may be another control plane's.
            for url in _addresses_held(control_plane):
                check_trust(provision.administrator, url=url)
                await revoke_issued(provision.administrator.with_server(url))
        except ConditionError as failure:
            if control_plane.status.endpoint is None:
                raise
            try:
                await revoke_as_published(self._context, control_plane)
            except ConditionError as other:
                told = f"{failure.message}; and the published credentials fail as well: {other.message}"
                raise ConditionError(failure.reason, told) from failure
            if len(_addresses_held(control_plane)) > 1:
                raise  # they are good at one of them only

    def _addresses(self, control_plane: ControlPlane) -> Addresses:
        return addresses_of(self._endpoint(control_plane), control_plane=control_plane)

    def _endpoint(self, control_plane: ControlPlane) -> ControlPlaneEndpoint:
        reference = control_plane.spec.endpoint_ref
        name = reference.name if reference is not None else ""
        obj = self._context.stores.endpoints.get(("", name))
        if obj is None:
            raise ConditionError(
                Reason.ENDPOINT_PENDING,
                f"ControlPlaneEndpoint {name}, named by spec.endpointRef, does not exist; create it",
            )
        return validated_endpoint(obj)


def _addresses_held(control_plane: ControlPlane) -> list[str]:
    """Return where identities of ours may be: where it is published last or about to be, and where it was before."""
    urls = (control_plane.status.claimed_address, control_plane.status.endpoint)
    return list({normalized_address(url): url for url in urls if url is not None}.values())


def _gives_up(control_plane: ControlPlane) -> bool:
    if control_plane.status.endpoint is None:
        return True  # nothing was published, so there is nothing to revoke
    asked = control_plane.metadata.deletion_timestamp
    return asked is not None and (datetime.now(UTC) - asked).total_seconds() > _REVOKE_SECONDS


async def revoke_as_published(context: OperatorContext, control_plane: ControlPlane) -> None:
    """Have what was issued in the control plane be worth nothing, by means of that. Raises ConditionError where it
    cannot."""
    controllers = await _published(context, control_plane, name=controllers_secret_name(control_plane.name))
    if controllers is None:
        raise ConditionError(Reason.CREDENTIALS_MISSING, "the published identity of the controllers is gone as well")
    try:
        async with tenant_client(controllers) as client:
            await revoke_as_controllers(client)
    except Unauthorized as error:
        # So it is after a call that succeeded, of which an operator that was killed has not told.
        administrator = await _published(context, control_plane, name=kubeconfig_secret_name(control_plane.name))
        if administrator is None or not await _is_refused(administrator):
            raise tenant_error("taking back what was issued in the control plane", error) from error
    except ProviderError as error:
        raise tenant_error("taking back what was issued in the control plane", error) from error


async def _published(context: OperatorContext, control_plane: ControlPlane, *, name: str) -> ClusterConfig | None:
    namespace = management_namespace(control_plane.name)
    return config_of(await find_secret(context, namespace=namespace, name=name, of=control_plane))


async def _is_refused(config: ClusterConfig) -> bool:
    try:
        async with tenant_client(config) as client:
            await client.request("GET", "/version")
    except Unauthorized:
        return True
    except ProviderError:
        return False
    return False
