"""Control planes whose API server somebody else runs: an address, and credentials to get in."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

from api import ControlPlane, ControlPlaneEndpoint, DeletionPolicy
from api.names import CONTROL_PLANE_LABEL, KUBECONFIG_KEY
from controlplane_operator.addresses import Addresses, addresses_of, realm_of
from controlplane_operator.management import Management
from controlplane_operator.provision import Provision
from controlplane_operator.retention import take_back
from controlplane_operator.secrets import data_of, find_secret
from controlplane_operator.trouble import Trouble
from provider import ClusterConfig, KubeconfigError

__all__ = ["ExternalProvisioner"]

_REVOKE_SECONDS: Final = 20.0
"""So long after the deletion was asked for it is tried to take our identities back."""


class ExternalProvisioner:
    """Adopts an API server by its ControlPlaneEndpoint."""

    def __init__(self, management: Management, *, default_credentials: ClusterConfig | None) -> None:
        """`default_credentials` are for endpoints that name no Secret themselves."""
        self._management = management
        self._default = default_credentials

    def realm(self, control_plane: ControlPlane) -> str | None:
        """Name the API server that the endpoint leads to."""
        try:
            return realm_of(self._addresses(control_plane).internal)
        except Trouble:
            return None

    async def ensure(self, control_plane: ControlPlane) -> Provision:
        """Find address and credentials; the address is checked before any credential is used."""
        endpoint = self._endpoint(control_plane)
        addresses = addresses_of(endpoint, control_plane=control_plane)
        credentials = await self._credentials(endpoint)
        for url in (addresses.internal, addresses.external, addresses.join):
            _check_trust(credentials, url=url)
        try:
            administrator = credentials.with_server(addresses.internal)
        except KubeconfigError as error:
            raise Trouble("EndpointInvalid", f"ControlPlaneEndpoint {endpoint.name}: {error}") from error
        return Provision(addresses, administrator=administrator, authorities=None)

    async def has_data(self, control_plane: ControlPlane) -> bool:  # noqa: ARG002 - of none
        """Whoever runs the API server keeps its data."""
        return False

    async def shut_out(self, uid: str) -> None:
        """There is nothing that an earlier control plane had access to."""

    async def remove(self, control_plane: ControlPlane, *, policy: DeletionPolicy) -> None:
        """Take our identities back; the data stays, whatever the policy says, because it is not ours."""
        try:
            provision = await self.ensure(control_plane)
            await take_back(provision.administrator)
        except Trouble as trouble:
            if not _gives_up(control_plane):
                raise
            self._management.events.record(
                control_plane,
                reason="CredentialsNotRevoked",
                message=f"what was issued in the control plane stays valid there until it expires: {trouble.message}",
                warning=True,
            )
        if policy is DeletionPolicy.DESTROY:
            self._management.events.record(
                control_plane,
                reason="DataRetained",
                message="the data stays: the API server is run by somebody else, so Destroy does not reach it",
            )

    def _addresses(self, control_plane: ControlPlane) -> Addresses:
        return addresses_of(self._endpoint(control_plane), control_plane=control_plane)

    def _endpoint(self, control_plane: ControlPlane) -> ControlPlaneEndpoint:
        reference = control_plane.spec.endpoint_ref
        name = reference.name if reference is not None else ""
        obj = self._management.stores.endpoints.get(("", name))
        if obj is None:
            raise Trouble(
                "EndpointPending",
                f"ControlPlaneEndpoint {name}, named by spec.endpointRef, does not exist; create it",
                waits_for_event=True,
            )
        return ControlPlaneEndpoint.model_validate(obj)

    async def _credentials(self, endpoint: ControlPlaneEndpoint) -> ClusterConfig:
        reference = endpoint.spec.credentials_secret_ref
        if reference is None:
            if self._default is None:
                raise Trouble(
                    "CredentialsMissing",
                    f"ControlPlaneEndpoint {endpoint.name} names no credentials; set its spec.credentialsSecretRef to a"
                    " Secret with an administrator's kubeconfig",
                    waits_for_event=True,
                )
            return self._default
        where = f"Secret {reference.namespace}/{reference.name}, named by ControlPlaneEndpoint {endpoint.name},"
        secret = await find_secret(self._management, namespace=reference.namespace, name=reference.name)
        if secret is None:
            raise Trouble("CredentialsMissing", f"{where} does not exist; create it")
        if CONTROL_PLANE_LABEL in (secret["metadata"].get("labels") or {}):
            # Else whoever may write endpoints, and read no Secret, would become another tenant's administrator.
            raise Trouble(
                "SecretNotAllowed",
                f"{where} is one that kplane made for a control plane, so it is not used for another one; name a Secret"
                " of your own",
            )
        kubeconfig = data_of(secret).get(KUBECONFIG_KEY)
        if kubeconfig is None:
            raise Trouble("CredentialsMissing", f"{where} has no key {KUBECONFIG_KEY!r} with a kubeconfig")
        try:
            credentials = ClusterConfig.from_kubeconfig(kubeconfig)
        except KubeconfigError as error:
            raise Trouble("CredentialsMissing", f"{where} cannot be used: {error}") from error
        if credentials.tls_server_name is not None:
            raise Trouble(
                "CredentialsMissing",
                f"{where} has a kubeconfig with tls-server-name, which published kubeconfigs do not carry; use a URL"
                " whose host is in the server's certificate",
            )
        return credentials


def _check_trust(credentials: ClusterConfig, *, url: str) -> None:
    """Raise Trouble where nothing but a certificate that anybody can get would guard the credentials."""
    if credentials.ca_data is None and _origin(credentials.server) != _origin(url):
        raise Trouble(
            "EndpointInvalid",
            f"the kubeconfig names no CA, so its credentials are for its own server {credentials.server} only, and not"
            f" for {url}; add certificate-authority-data to it, or correct the endpoint's URL",
        )


def _origin(url: str) -> tuple[str | None, int]:
    parts = urlsplit(url)
    return parts.hostname, parts.port or 443


def _gives_up(control_plane: ControlPlane) -> bool:
    if control_plane.status.endpoint is None:
        return True  # nothing was published, so nobody holds anything that could be taken back
    asked = control_plane.metadata.deletion_timestamp
    return asked is not None and (datetime.now(UTC) - asked).total_seconds() > _REVOKE_SECONDS
