"""Resets a running API server through its keys in etcd. Its caches follow, and no process restarts."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from kplane import data
from kplane.provider import Client, NotFound, ProviderError
from kplane.provider.client.resources import CLUSTER_ROLE_BINDINGS, CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES

Eventually = Callable[..., Awaitable[Any]]

_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_numbers = itertools.count(1)


async def reset_api_server(
    client: Client, *, etcd: data.Client, prefix: str, template: data.Template, eventually: Eventually
) -> None:
    """Reset the keys to the template, and wait until the API server acts on them. `client` is an administrator."""
    changes = await data.reset(etcd, prefix, template)
    for *_, kind, name in (key.decode().split("/") for key in changes.deleted):
        # These parts of the API server follow their objects through separate watches.
        if kind == NAMESPACES.plural:
            await eventually(lambda name=name: _is_unknown(client, namespace=name))
        elif kind == CUSTOM_RESOURCE_DEFINITIONS.plural:
            plural, _, group = name.partition(".")
            await eventually(lambda group=group, plural=plural: _is_not_served(client, group=group, plural=plural))
    # The authorizer receives bindings in order: once it knows the last binding, the deleted bindings are forgotten.
    user = f"reset-{next(_numbers)}"
    body = {
        "metadata": {"name": "reset"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    await client.create(CLUSTER_ROLE_BINDINGS, body)
    await eventually(lambda: _may(client, user))
    await client.delete(CLUSTER_ROLE_BINDINGS, "reset")
    await eventually(lambda: _may(client, user), lambda allowed: not allowed)


async def _is_unknown(client: Client, *, namespace: str) -> bool:
    try:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "reset-"}}
        path = CONFIG_MAPS.path(namespace=namespace)
        await client.request("POST", path, body=body, params={"dryRun": "All"})
    except NotFound:
        return True
    except ProviderError:
        return False
    return False


async def _is_not_served(client: Client, *, group: str, plural: str) -> bool:
    try:
        await client.request("GET", f"/apis/{group}/v1/{plural}")
    except NotFound:
        return True
    return False


async def _may(client: Client, user: str) -> bool:
    spec = {"user": user, "resourceAttributes": {"verb": "delete", "resource": "namespaces"}}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = await client.request("POST", _REVIEWS, body=body)
    return bool(answer["status"]["allowed"])
