"""Watches of objects of a kind, until the caller stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from pydantic import ValidationError

from kplane.api import ResourceModel
from kplane.api.resource import ResourceInfo
from kplane.client.errors import ClientError
from kplane.provider import Client, Event, Informer, NotFound, Resource, Unreachable
from kplane.provider.aio.backoff import Backoff
from kplane.provider.cache.event import EventKind

__all__ = ["Change", "follow", "follow_objects", "read_as", "served"]

Kind = TypeVar("Kind", bound=ResourceModel)


@dataclass(frozen=True, slots=True)
class Change(Generic[Kind]):
    """The current state of an object; for DELETED, its last state."""

    type: EventKind
    object: Kind


def served(info: ResourceInfo) -> Resource:
    """Return the API resource of a kind of kplane."""
    return Resource(info.api_version, info.kind, info.plural, namespaced=info.scope == "Namespaced")


def read_as(kind: type[Kind], obj: dict[str, object]) -> Kind:
    """Return the object as an instance of `kind`. Raises ClientError if this version of kplane cannot read it."""
    try:
        return kind.model_validate(obj)
    except ValidationError as error:
        name = cast("dict[str, str]", obj["metadata"])["name"]
        raise ClientError(
            f"failed to read {kind.resource.kind} {name}: {error.error_count()} fields are of another version of"
            " kplane; upgrade this client"
        ) from error


async def follow(client: Client, kind: type[Kind], *, name: str | None = None) -> AsyncGenerator[Change[Kind], None]:
    """Yield the existing objects, then each change, without an end. Close it by `contextlib.aclosing`.

    Raises ApiError if the API server refuses the first request. Later refusals, and an unreachable server, are retried.
    """
    async with contextlib.aclosing(follow_objects(client, served(kind.resource), name=name)) as events:
        async for event in events:
            yield Change(event.kind, read_as(kind, event.object))


async def follow_objects(
    client: Client, resource: Resource, *, namespaces: Sequence[str | None] = (None,), name: str | None = None
) -> AsyncGenerator[Event, None]:
    """Yield the existing objects of any resource in these namespaces, then each change; see `follow`."""
    events: asyncio.Queue[Event] = asyncio.Queue()
    async with contextlib.AsyncExitStack() as stack:
        for namespace in namespaces:
            await _require_served(client, resource, namespace=namespace, name=name)
            backoff = Backoff(initial_seconds=0.5, maximum_seconds=10.0)
            informer = Informer(client, resource, namespace=namespace, name=name, backoff=backoff)
            stack.push_async_callback(informer.aclose)
            informer.add_handler(events.put_nowait)
            informer.start()
        while True:
            yield await events.get()


async def _require_served(client: Client, resource: Resource, *, namespace: str | None, name: str | None) -> None:
    """Raise the ApiError that an informer would retry: the kind does not exist, or the user may not read it."""
    try:
        await client.request("GET", resource.path(name, namespace=namespace), params={} if name else {"limit": 1})
    except Unreachable:
        return
    except NotFound as error:
        if "name" not in error.details:
            raise
