"""Credentials of a ControlPlaneEndpoint: read from a Secret whose owner permits it, and checked for the addresses."""

from __future__ import annotations

from urllib.parse import urlsplit

from kplane.api import ControlPlaneEndpoint
from kplane.api.names import ALLOW_ENDPOINT_LABEL, CONTROL_PLANE_LABEL, KUBECONFIG_KEY
from kplane.api.reasons import Reason
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.credentials.secrets import read_secret
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.cache import Object
from kplane.pki.entries import data_of
from kplane.provider import ClusterConfig
from kplane.provider.errors import KubeconfigError

__all__ = ["EndpointCredentials", "check_trust"]


class EndpointCredentials:
    """Reader of the Secrets of endpoints. A Secret must have the label with which its owner permits the use."""

    def __init__(self, context: OperatorContext, *, default: ClusterConfig | None) -> None:
        """`default` is the configuration for endpoints without a Secret reference; None if there is no default."""
        self._context = context
        self._default = default

    async def of(self, endpoint: ControlPlaneEndpoint) -> ClusterConfig:
        """Return the credentials of an endpoint. Their server is the server in the kubeconfig.

        Raises ConditionError: CredentialsMissing if there are no usable credentials, SecretNotAllowed if the Secret
        does not permit the use by endpoints. The reason is SecretsNotReadable if the operator has no right to read the
        Secret.
        """
        reference = endpoint.spec.credentials_secret_ref
        if reference is None:
            if self._default is None:
                raise ConditionError(
                    Reason.CREDENTIALS_MISSING,
                    f"ControlPlaneEndpoint {endpoint.name} names no credentials; set its spec.credentialsSecretRef to a"
                    " Secret with an administrator's kubeconfig",
                    waits_for_event=True,
                )
            _check_publishable(self._default, where="the file of --cluster-kubeconfig")
            return self._default
        where = f"Secret {reference.namespace}/{reference.name}, named by ControlPlaneEndpoint {endpoint.name},"
        secret = await read_secret(self._context, reference, self._context.stores.endpoint_secrets)
        if secret is None:
            # Retried periodically as well, because a Secret without the label is not watched.
            raise ConditionError(
                Reason.CREDENTIALS_MISSING,
                f'{where} does not exist; create it, with the label {ALLOW_ENDPOINT_LABEL}="true"',
            )
        _check_allowed(secret, where=where)
        return _read(secret, where=where)


def check_trust(credentials: ClusterConfig, *, url: str) -> None:
    """Raise ConditionError if a kubeconfig without a CA is used for another server than its own.

    Without a CA, any publicly trusted certificate would be enough to receive the credentials.
    """
    if credentials.ca_data is None and _origin(credentials.server) != _origin(url):
        raise ConditionError(
            Reason.ENDPOINT_INVALID,
            f"the kubeconfig names no CA, so its credentials are for its own server {credentials.server} only, and not"
            f" for {url}; add certificate-authority-data to it, or correct the endpoint's URL",
        )


def _check_allowed(secret: Object, *, where: str) -> None:
    # Otherwise a user who may write endpoints, but may not read Secrets, could use each kubeconfig in the management
    # cluster.
    labels = secret["metadata"].get("labels") or {}
    if CONTROL_PLANE_LABEL in labels:
        raise ConditionError(
            Reason.SECRET_NOT_ALLOWED,
            f"{where} is one that kplane made for a control plane, so it is not used for another one; name a Secret of"
            " your own",
            waits_for_event=True,
        )
    if labels.get(ALLOW_ENDPOINT_LABEL) != "true":
        raise ConditionError(
            Reason.SECRET_NOT_ALLOWED,
            f'{where} must not be used by endpoints; to allow it, label it {ALLOW_ENDPOINT_LABEL}="true"',
            waits_for_event=True,
        )


def _read(secret: Object, *, where: str) -> ClusterConfig:
    kubeconfig = data_of(secret).get(KUBECONFIG_KEY)
    if kubeconfig is None:
        raise ConditionError(Reason.CREDENTIALS_MISSING, f"{where} has no key {KUBECONFIG_KEY!r} with a kubeconfig")
    try:
        credentials = ClusterConfig.from_kubeconfig(kubeconfig)
    except KubeconfigError as error:
        raise ConditionError(Reason.CREDENTIALS_MISSING, f"{where} cannot be used: {error}") from error
    _check_publishable(credentials, where=where)
    return credentials


def _check_publishable(credentials: ClusterConfig, *, where: str) -> None:
    """Raise ConditionError if published kubeconfigs cannot express a setting that clients need for the server."""
    if credentials.tls_server_name is not None:
        raise ConditionError(
            Reason.CREDENTIALS_MISSING,
            f"{where} has a kubeconfig with tls-server-name, which published kubeconfigs do not carry; use a URL whose"
            " host is in the server's certificate",
        )
    if credentials.proxy is not None and urlsplit(credentials.proxy).username is not None:
        raise ConditionError(
            Reason.CREDENTIALS_MISSING,
            f"{where} has a kubeconfig whose proxy-url names a user, and published kubeconfigs would show the password;"
            " use a proxy that needs none",
        )


def _origin(url: str) -> tuple[str | None, int]:
    parts = urlsplit(url)
    return parts.hostname, parts.port or 443
