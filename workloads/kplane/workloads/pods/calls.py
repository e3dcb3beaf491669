"""Calls to the cluster: read a component's own objects, and convert refusals to errors of this package."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

from kplane.provider import Client, NotFound, ProviderError, Resource
from kplane.provider.client.resources import NAMESPACES
from kplane.provider.errors import Forbidden
from kplane.workloads.errors import RuntimeFailure
from kplane.workloads.pods.objects import Object, component_of

__all__ = ["failing", "get_own", "is_leaving", "unless_leaving"]


async def get_own(client: Client, resource: Resource, object_name: str, *, namespace: str, of: str) -> Object | None:
    """Return the present object; None if it does not exist, or does not belong to the component `of`."""
    try:
        obj = await client.get(resource, object_name, namespace=namespace)
    except NotFound:
        return None
    return obj if component_of(obj) == of else None


@contextlib.contextmanager
def failing(what: str) -> Iterator[None]:
    """Convert refusals of the cluster, and missing answers, to RuntimeFailure."""
    try:
        yield
    except ProviderError as error:
        raise RuntimeFailure(f"{what}: {error}") from error


async def is_leaving(client: Client, namespace: str) -> bool:
    """Return whether a namespace is gone or is being deleted, together with the permissions bound in it."""
    try:
        obj = await client.get(NAMESPACES, namespace)
    except NotFound:
        return True
    return "deletionTimestamp" in obj["metadata"]


@contextlib.asynccontextmanager
async def unless_leaving(client: Client, namespace: str) -> AsyncIterator[None]:
    """Ignore a refusal in a namespace that is being deleted, because its objects are deleted with it."""
    try:
        yield
    except Forbidden:
        if not await is_leaving(client, namespace):
            raise
