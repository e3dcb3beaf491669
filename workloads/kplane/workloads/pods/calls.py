"""Calls to the cluster: what is a component's own, and what a refusal becomes."""

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
    """Return an object as it is now; None if there is none, or if it is not of the component `of`."""
    try:
        found = await client.get(resource, object_name, namespace=namespace)
    except NotFound:
        return None
    return found if component_of(found) == of else None


@contextlib.contextmanager
def failing(what: str) -> Iterator[None]:
    """Turn refusals and silence of the cluster into RuntimeFailure."""
    try:
        yield
    except ProviderError as error:
        raise RuntimeFailure(f"{what}: {error}") from error


async def is_leaving(client: Client, namespace: str) -> bool:
    """Tell whether a namespace is gone or is being deleted, and the rights that were bound in it with it."""
    try:
        found = await client.get(NAMESPACES, namespace)
    except NotFound:
        return True
    return "deletionTimestamp" in found["metadata"]


@contextlib.asynccontextmanager
async def unless_leaving(client: Client, namespace: str) -> AsyncIterator[None]:
    """Ignore a refusal in a namespace that is leaving: what was to be removed there goes with the namespace."""
    try:
        yield
    except Forbidden:
        if not await is_leaving(client, namespace):
            raise
