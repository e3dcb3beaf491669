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
    secret = await client.get(SECRETS, name, namespace=namespace)
    return {key: base64.b64decode(value) for key, value in secret["data"].items()}


async def external_config(client: Client, name: str) -> ClusterConfig:
    """Return the settings of the published kubeconfig, which leads through the gateway to a control plane."""
    kubeconfigs = await secret(client, kubeconfig_secret_name(name), management_namespace(name))
    return ClusterConfig.from_kubeconfig(kubeconfigs["kubeconfig-external"])


async def certified_config(client: Client, name: str) -> tuple[ClusterConfig, TenantAuthorities]:
    """Return the settings of an administrator with a client certificate, and the CA keys of the control plane."""
    external = await external_config(client, name)
    authorities = TenantAuthorities.from_secret(await secret(client, AUTHORITIES_SECRET, management_namespace(name)))
    pair = issue_client(authorities.client, user="admin", groups=("system:masters",))
    user = dataclasses.replace(external, token=None, client_certificate=pair.certificate, client_key=pair.key)
    return user, authorities
