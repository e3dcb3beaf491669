"""Backend of adopted control planes: an address, and credentials for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from kplane.api import ControlPlane, ControlPlaneEndpoint, DeletionPolicy
from kplane.api.addresses import normalized_address
from kplane.api.clocks import is_future
from kplane.api.names import controllers_secret_name, kubeconfig_secret_name, management_namespace
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.base import Provision
from kplane.controlplane_operator.backends.cluster_claims import ClusterClaims
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.credentials.secrets import find_secret
from kplane.controlplane_operator.endpoints.addresses import Addresses, addresses_of
from kplane.controlplane_operator.endpoints.credentials import EndpointCredentials, check_trust
from kplane.controlplane_operator.errors import BootstrapFailed
from kplane.controlplane_operator.status.errors import ConditionError, tenant_error
from kplane.controlplane_operator.status.partial import validated_endpoint
from kplane.controlplane_operator.tenant.client import tenant_client
from kplane.controlplane_operator.tenant.identity import find_cluster_uid
from kplane.controlplane_operator.tenant.revocation import revoke, revoke_as_controllers
from kplane.data import Usage
from kplane.pki.kubeconfig import config_of
from kplane.provider import Client, ClusterConfig, ProviderError
from kplane.provider.errors import Forbidden, KubeconfigError, Unauthorized

__all__ = ["AdoptedProvisioner"]

_REVOKE_SECONDS: Final = 20.0
"""Maximum time after the deletion request in which failed revocations of kplane's identities are retried."""


class AdoptedProvisioner:
    """Backend that adopts an API server by its ControlPlaneEndpoint."""

    def __init__(
        self, context: OperatorContext, *, default_credentials: ClusterConfig | None, clusters: ClusterClaims
    ) -> None:
        """Create the backend; `default_credentials` are for endpoints that name no Secret."""
        self._context = context
        self._clusters = clusters
        self._credentials = EndpointCredentials(context, default=default_credentials)

    def address(self, control_plane: ControlPlane) -> str | None:
        """Return the normalized address of the endpoint; None if the endpoint is missing or invalid."""
        try:
            return normalized_address(self._addresses(control_plane).internal)
        except ConditionError:
            return None

    async def ensure(self, control_plane: ControlPlane) -> Provision:
        """Return address and credentials of the endpoint. Each address is checked before credentials are used.

        Raises ConditionError if the endpoint or its credentials are missing or invalid.
        """
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
        """Return None: kplane does not have the data, so none are in the namespace."""
        return None

    async def unprotect(self, control_plane: ControlPlane) -> None:
        """Do nothing: the namespace holds no data."""

    def usage(self, uid: str) -> Usage | None:  # noqa: ARG002 - of none
        """Return None: an adopted control plane has no keys in the shared etcd."""
        return None

    def let_go(self, uid: str) -> None:
        """Do nothing: an adopted control plane has no background repairs."""

    async def take_over(self, control_plane: ControlPlane, *, former: str) -> None:
        """Do nothing: the former control plane had no access to data that kplane keeps."""

    async def shut_down(self, control_plane: ControlPlane) -> None:
        """Revoke kplane's identities with the credentials of the endpoint, or else with the published credentials.

        Raises ConditionError if the revocation fails. Gives up with an Event 20 s after the deletion request, or at
        once if the control plane was never published.
        """
        if control_plane.status.cluster_uid is None and control_plane.status.endpoint is None:
            return  # the operator records the cluster before it writes anything there
        try:
            await self._revoke_issued(control_plane)
        except ConditionError as failure:
            if not _gives_up(control_plane, now=datetime.now(UTC)):
                raise
            self._context.events.record(
                control_plane,
                reason="CredentialsNotRevoked",
                message=f"issued credentials stay valid in the control plane until they expire: {failure.message}",
                warning=True,
            )

    async def settle(self, control_plane: ControlPlane, *, policy: DeletionPolicy) -> None:
        """Leave the data, which kplane does not own, and record an Event if the policy is Destroy."""
        if policy is DeletionPolicy.DESTROY:
            self._context.events.record(
                control_plane,
                reason=Reason.DATA_RETAINED,
                message="the data stay: kplane does not run the API server, so Destroy does not reach them",
            )

    async def _revoke_issued(self, control_plane: ControlPlane) -> None:
        # Revoke at the recorded addresses. The endpoint may have another address by now, perhaps that of another
        # control plane.
        urls = _addresses_held(control_plane)
        failures: dict[str, ConditionError] = {}
        reached = not urls
        try:
            provision = await self.ensure(control_plane)
        except ConditionError as failure:
            failures = dict.fromkeys(urls, failure)
        else:
            for url in urls:
                try:
                    reached = await self._revoke_at(control_plane, provision.administrator, url=url) or reached
                except ConditionError as failure:
                    failures[url] = failure
        at_published = failures.pop(control_plane.status.endpoint or "", None)
        if at_published is not None:
            try:
                await self._revoke_as_published(control_plane)
            except ConditionError as published_failure:
                message = (
                    f"{at_published.message}; and the published credentials fail as well: {published_failure.message}"
                )
                raise ConditionError(at_published.reason, message) from at_published
            reached = True
        if failures:
            raise next(iter(failures.values()))
        if not reached:
            raise ConditionError(
                Reason.CLUSTER_CHANGED,
                f"another cluster than the adopted one (uid {control_plane.status.cluster_uid}) answers at"
                f" {', '.join(urls)}",
            )

    async def _revoke_at(self, control_plane: ControlPlane, administrator: ClusterConfig, *, url: str) -> bool:
        """Revoke kplane's identities at an address; return False if a cluster other than the adopted one answers."""
        check_trust(administrator, url=url)
        with _revocation_errors():
            async with tenant_client(administrator.with_server(url)) as client:
                cluster_uid, recorded_uid = await find_cluster_uid(client), control_plane.status.cluster_uid
                if recorded_uid not in (None, cluster_uid):
                    return False
                if not self._is_anothers(control_plane, cluster_uid):
                    await revoke(client, owner=control_plane.metadata.uid)
        return True

    async def _revoke_as_published(self, control_plane: ControlPlane) -> None:
        """Revoke kplane's identities with the published credentials. Raises ConditionError if the revocation fails."""
        name = control_plane.name
        controllers = await _published(self._context, control_plane, name=controllers_secret_name(name))
        if controllers is None:
            raise ConditionError(Reason.CREDENTIALS_MISSING, "the published identity of the controllers is gone")
        with _revocation_errors():
            try:
                async with tenant_client(controllers) as client:
                    if not self._is_anothers(control_plane, await _cluster_uid_as_controllers(client)):
                        await revoke_as_controllers(client, owner=control_plane.metadata.uid)
            except Unauthorized:
                # An operator that was killed may have revoked them already: the API server then refuses the published
                # credentials.
                administrator = await _published(self._context, control_plane, name=kubeconfig_secret_name(name))
                if administrator is None or not await _is_refused(administrator):
                    raise

    def _is_anothers(self, control_plane: ControlPlane, cluster_uid: str | None) -> bool:
        """Return whether the cluster belongs to another control plane, which owns the identities in it."""
        return cluster_uid is not None and self._clusters.holder(control_plane, cluster_uid=cluster_uid) is not None

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
    """Return the addresses that may have identities of kplane: the claimed address and the published address."""
    urls = (control_plane.status.claimed_address, control_plane.status.endpoint)
    return list({normalized_address(url): url for url in urls if url is not None}.values())


def _gives_up(control_plane: ControlPlane, *, now: datetime) -> bool:
    """Return whether failed revocations are retried no more."""
    if control_plane.status.endpoint is None:
        return True  # no credentials were published, so there are none to revoke
    deletion_time = control_plane.metadata.deletion_timestamp
    if deletion_time is None:
        return False
    # A request with a time in the future was made while the clock was wrong, so its time of retries is unknown.
    return is_future(deletion_time, now=now) or (now - deletion_time).total_seconds() > _REVOKE_SECONDS


async def _cluster_uid_as_controllers(client: Client) -> str | None:
    """Return the identity of the cluster; None if the controllers may no longer read it.

    An earlier, interrupted revocation removes that right before the account.
    """
    try:
        return await find_cluster_uid(client)
    except Forbidden:
        return None


@contextmanager
def _revocation_errors() -> Iterator[None]:
    """Convert errors inside the control plane to ConditionError."""
    try:
        yield
    except ProviderError as error:
        raise tenant_error("taking back what was issued in the control plane", error) from error
    except BootstrapFailed as error:
        raise ConditionError(Reason.BOOTSTRAP_FAILED, str(error)) from error


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
