"""Publishes to the gateway what it needs to serve a control plane."""

from __future__ import annotations

from datetime import UTC, datetime

from kplane.api import ControlPlane, ControlPlaneMode
from kplane.api.names import CA_KEY, UID_ANNOTATION, gateway_secret_name
from kplane.controlplane_operator.backends.base import Provision
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.errors import CredentialsInvalid
from kplane.controlplane_operator.pki.authorities import FRONT_PROXY_USER
from kplane.controlplane_operator.pki.entries import entries, kept, read_pair
from kplane.controlplane_operator.pki.primitives import KeyPair, issue_client
from kplane.controlplane_operator.pki.secrets import data_of, write_secret

__all__ = ["write_gateway_secret"]

_PAIR = "tls"


async def write_gateway_secret(context: OperatorContext, control_plane: ControlPlane, *, provision: Provision) -> None:
    """Write the gateway's Secret of a control plane of mode Virtual that kplane runs, if there is a gateway.

    The certificate in it is the gateway's own: the API server takes users from it, and it opens nothing else.
    Raises ConditionError (SecretsNotReadable) while the operator may not read the gateway's namespace.
    """
    namespace, authorities = context.gateway_namespace, provision.authorities
    if namespace is None or authorities is None or control_plane.spec.mode is not ControlPlaneMode.VIRTUAL:
        return
    await context.secrets.open(namespace)
    previous = _previous(context, control_plane, namespace=namespace)
    pair = kept(previous, authorities.front_proxy, now=datetime.now(UTC), user=FRONT_PROXY_USER)
    await write_secret(
        context,
        control_plane,
        name=gateway_secret_name(control_plane.name),
        namespace=namespace,
        data={
            "server": provision.addresses.internal.encode(),
            CA_KEY: authorities.serving_trust,
            "client-ca.crt": authorities.client_trust,
            **entries(_PAIR, pair or issue_client(authorities.front_proxy, user=FRONT_PROXY_USER)),
        },
        annotations={UID_ANNOTATION: control_plane.metadata.uid or ""},
    )


def _previous(context: OperatorContext, control_plane: ControlPlane, *, namespace: str) -> KeyPair | None:
    known = context.stores.secrets.get((namespace, gateway_secret_name(control_plane.name)))
    if known is None:
        return None
    try:
        return read_pair(data_of(known), _PAIR)
    except CredentialsInvalid:
        return None
