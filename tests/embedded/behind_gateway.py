"""Access to control planes through the gateway of an embedded cluster, for tests."""

from __future__ import annotations

import base64

from kplane.api.names import kubeconfig_secret_name, management_namespace
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import SECRETS

__all__ = ["external_config", "secret"]


async def secret(client: Client, name: str, namespace: str) -> dict[str, bytes]:
    """Read a Secret of the management cluster."""
    found = await client.get(SECRETS, name, namespace=namespace)
    return {key: base64.b64decode(value) for key, value in found["data"].items()}


async def external_config(client: Client, name: str) -> ClusterConfig:
    """Return how a user with the published kubeconfig reaches a control plane through the gateway."""
    published = await secret(client, kubeconfig_secret_name(name), management_namespace(name))
    return ClusterConfig.from_kubeconfig(published["kubeconfig-external"])
