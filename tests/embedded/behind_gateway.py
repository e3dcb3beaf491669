"""Access to control planes through the gateway of an embedded cluster, for tests."""

from __future__ import annotations

import base64
import dataclasses

from kplane.api.names import kubeconfig_secret_name, management_namespace
from kplane.controlplane_operator.credentials.store import AUTHORITIES_SECRET
from kplane.pki.authorities import TenantAuthorities
from kplane.pki.primitives import issue_client
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import SECRETS

__all__ = ["certified_config", "external_config", "secret"]


async def secret(client: Client, name: str, namespace: str) -> dict[str, bytes]:
    """Read a Secret of the management cluster."""
    found = await client.get(SECRETS, name, namespace=namespace)
    return {key: base64.b64decode(value) for key, value in found["data"].items()}


async def external_config(client: Client, name: str) -> ClusterConfig:
    """Return how a user with the published kubeconfig reaches a control plane through the gateway."""
    published = await secret(client, kubeconfig_secret_name(name), management_namespace(name))
    return ClusterConfig.from_kubeconfig(published["kubeconfig-external"])


async def certified_config(client: Client, name: str) -> tuple[ClusterConfig, TenantAuthorities]:
    """Return how an administrator with a client certificate reaches a control plane, and its keys."""
    through = await external_config(client, name)
    authorities = TenantAuthorities.from_secret(await secret(client, AUTHORITIES_SECRET, management_namespace(name)))
    pair = issue_client(authorities.client, user="admin", groups=("system:masters",))
    user = dataclasses.replace(through, token=None, client_certificate=pair.certificate, client_key=pair.key)
    return user, authorities
