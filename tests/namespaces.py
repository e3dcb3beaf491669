"""Finalizes namespaces of control planes at once. kube-controller-manager delays each by five seconds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from kplane.provider import Client, ClusterConfig, ProviderError
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES, ROLE_BINDINGS, ROLES, SECRETS, SERVICE_ACCOUNTS

_CONTENT = (SECRETS, SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, CONFIG_MAPS)
"""Kinds that the operator and the cluster's controllers create in the namespaces."""


Due = Callable[[dict[str, Any]], Awaitable[bool]]


@contextlib.asynccontextmanager
async def going_at_once(config: ClusterConfig, *, due: Due | None = None) -> AsyncIterator[None]:
    """Do the namespace controller's work for deleted namespaces of control planes until the block ends.

    The delay exists for clusters with several API servers, and is not configurable. `config` has the rights of the
    cluster's administrator. A namespace stays until `due` returns true for it.
    """
    async with Client(config, field_manager="kplane") as client:
        ending = asyncio.create_task(_end_all(client, due=due))
        try:
            yield
        finally:
            ending.cancel()
            await asyncio.wait([ending])


async def _end_all(client: Client, *, due: Due | None) -> None:
    async with asyncio.TaskGroup() as group:
        while True:
            with contextlib.suppress(ProviderError):
                listed = await client.list(NAMESPACES)
                for namespace in filter(_is_ending, listed.items):
                    group.create_task(_end(client, namespace, due=due))
                async with client.watch(NAMESPACES, resource_version=listed.resource_version) as watch:
                    async for event in watch:
                        if event.type == "MODIFIED" and _is_ending(event.object):
                            group.create_task(_end(client, event.object, due=due))
            await asyncio.sleep(0.05)


def _is_ending(namespace: dict[str, Any]) -> bool:
    metadata = namespace["metadata"]
    return "deletionTimestamp" in metadata and metadata["name"].startswith(("kplane-cp-", "kplane-cpx-"))


async def _end(client: Client, namespace: dict[str, Any], *, due: Due | None) -> None:
    name = namespace["metadata"]["name"]
    with contextlib.suppress(ProviderError):  # the namespace controller may be faster
        while due is not None and not await due(namespace):  # noqa: ASYNC110 - a few times in a test
            await asyncio.sleep(0.02)
        while not await _emptied(client, name):  # noqa: ASYNC110 - finalizers may delay the deletion of objects
            await asyncio.sleep(0.05)
        body = {**namespace, "spec": {"finalizers": []}}
        await client.request("PUT", f"/api/v1/namespaces/{name}/finalize", body=body)


async def _emptied(client: Client, name: str) -> bool:
    """Delete the objects of a namespace. Return whether the namespace is empty."""
    remaining = 0
    for resource in _CONTENT:
        await client.request("DELETE", resource.path(namespace=name))
        remaining += len((await client.list(resource, namespace=name)).items)
    return not remaining
