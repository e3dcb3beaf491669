"""Adoption of an existing API server: creates the objects that give kplane access."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from kplane.api import ControlPlane, ControlPlaneEndpoint, ControlPlaneMode
from kplane.api.names import ALLOW_ENDPOINT_LABEL
from kplane.client.errors import ClientError
from kplane.client.watching import read_as, served
from kplane.provider import Client, ClusterConfig, NotFound, ProviderError
from kplane.provider.client.resources import SECRETS

__all__ = ["adopt"]

_CONTROL_PLANES: Final = served(ControlPlane.resource)
_ENDPOINTS: Final = served(ControlPlaneEndpoint.resource)
_SHARED_PATH: Final = re.compile(r".*/clusters/([^/]+)/control-plane/?")


async def adopt(
    client: Client, name: str, *, config: ClusterConfig, namespace: str, external: str | None = None
) -> ControlPlane:
    """Create endpoint, Secret and ControlPlane for the API server of `config`; all objects or none.

    `config` has the credentials of an administrator. The Secret is created in `namespace`; the operator must be allowed
    to read Secrets there. The Secret is deleted with the endpoint. `external` is the URL for people, if it differs.
    Raises AlreadyExists if an object exists, and ClientError if the operator could not use the credentials of `config`.
    """
    _require_lasting(config)
    spec: dict[str, Any] = {"mode": str(ControlPlaneMode.DEDICATED), "endpointRef": {"name": name}}
    if (shared := _SHARED_PATH.fullmatch(urlsplit(config.server).path)) is not None:
        spec |= {"mode": str(ControlPlaneMode.VIRTUAL), "virtual": {"clusterPath": shared[1]}}
    secret = f"{name}-endpoint"
    async with contextlib.AsyncExitStack() as undo:
        endpoint = await client.create(_ENDPOINTS, _endpoint(name, config, secret, namespace, external))
        undo.push_async_callback(_quietly, lambda: client.delete(_ENDPOINTS, name, uid=endpoint["metadata"]["uid"]))
        await client.create(SECRETS, _secret(secret, config, owner=endpoint), namespace=namespace)
        undo.push_async_callback(_quietly, lambda: client.delete(SECRETS, secret, namespace=namespace))
        made = read_as(ControlPlane, await client.create(_CONTROL_PLANES, {"metadata": {"name": name}, "spec": spec}))
        undo.pop_all()
    return made


def _require_lasting(config: ClusterConfig) -> None:
    if config.exec_plugin is not None or config.token_file is not None:
        raise ClientError(
            "the kubeconfig gets its credentials from a program or a file, which the operator does not have. Give one"
            " with the token or the client certificate of an administrator"
        )
    if config.tls_server_name is not None:
        raise ClientError("the kubeconfig has tls-server-name; use a URL whose host is in the server's certificate")
    if config.token is None and config.client_certificate is None:
        raise ClientError("the kubeconfig has no credentials; give one of an administrator of that API server")


def _endpoint(name: str, config: ClusterConfig, secret: str, namespace: str, external: str | None) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "endpoint": config.server,
        "credentialsSecretRef": {"name": secret, "namespace": namespace},
    }
    if external is not None:
        spec["externalEndpoint"] = external
    return {"metadata": {"name": name}, "spec": spec}


def _secret(name: str, config: ClusterConfig, *, owner: dict[str, Any]) -> dict[str, Any]:
    """Return the Secret. Its label is the consent of the API server's owner."""
    reference = {
        "apiVersion": _ENDPOINTS.api_version,
        "kind": _ENDPOINTS.kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    kubeconfig = yaml.safe_dump(config.to_kubeconfig())
    return {
        "metadata": {"name": name, "labels": {ALLOW_ENDPOINT_LABEL: "true"}, "ownerReferences": [reference]},
        "data": {"kubeconfig": base64.b64encode(kubeconfig.encode()).decode()},
    }


async def _quietly(undo: Callable[[], Awaitable[object]]) -> None:
    """Undo a step and ignore errors, so that the caller raises the error that caused the undo."""
    with contextlib.suppress(NotFound, ProviderError):
        await undo()
