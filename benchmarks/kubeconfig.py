"""Reads the administrator's kubeconfig of a control plane."""

from __future__ import annotations

import base64

from kplane.api.names import kubeconfig_secret_name, management_namespace
from kplane.provider import Client
from kplane.provider.client.resources import SECRETS

__all__ = ["kubeconfig_of"]


async def kubeconfig_of(client: Client, name: str) -> bytes:
    """Read the kubeconfig with a client of the management cluster. Raises NotFound if it is not published yet."""
    secret = await client.get(SECRETS, kubeconfig_secret_name(name), namespace=management_namespace(name))
    return base64.b64decode(secret["data"]["kubeconfig"])
