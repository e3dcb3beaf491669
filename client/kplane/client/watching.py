"""Follows objects of one kind until the caller stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar, cast

from pydantic import ValidationError

from kplane.api import ResourceModel
from kplane.api.resource import ResourceInfo
from kplane.client.errors import ClientError
from kplane.provider import Client, Resource, Unreachable
from kplane.provider.aio.backoff import Backoff
from kplane.provider.errors import Expired

__all__ = ["Change", "follow", "read_as", "served"]

Kind = TypeVar("Kind", bound=ResourceModel)

_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Change(Generic[Kind]):
    """An object as it is now; for DELETED, as it was last."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Kind


def served(info: ResourceInfo) -> Resource:
    """Return a kind of kplane as the API server serves it."""
    return Resource(info.api_version, info.kind, info.plural, namespaced=info.scope == "Namespaced")


def read_as(kind: type[Kind], obj: dict[str, object]) -> Kind:
    """Read an object. Raises ClientError if this version of kplane does not understand it."""
    try:
        return kind.model_validate(obj)
    except ValidationError as error:
        name = cast("dict[str, str]", obj["metadata"])["name"]
        raise ClientError(
            f"failed to read {kind.resource.kind} {name}: {error.error_count()} fields are of another version of"
            " kplane; upgrade this client"
        ) from error


async def follow(client: Client, kind: type[Kind], *, name: str | None = None) -> AsyncGenerator[Change[Kind], None]:
    """Yield what there is, then each change, without an end. Close it by `contextlib.aclosing`.

    An object may be yielded again as it was. Raises ApiError if the API server refuses; waits while it is unreachable.
    """
    resource = served(kind.resource)
    selector = f"metadata.name={name}" if name is not None else None
    known: dict[str, Kind] = {}
    backoff = Backoff(initial_seconds=0.5, maximum_seconds=10.0)
    while True:
        try:
            listing = await client.list(resource, field_selector=selector)
            present = {each.name: each for each in (read_as(kind, obj) for obj in listing.items)}
            for gone in [each for each in known if each not in present]:
                yield Change("DELETED", known.pop(gone))
            for each, found in present.items():
                changed = each in known
                known[each] = found
                yield Change("MODIFIED" if changed else "ADDED", found)
            version = listing.resource_version
            async with client.watch(
                resource, resource_version=version, field_selector=selector, timeout_seconds=_SECONDS
            ) as watch:
                async for event in watch:
                    backoff.reset()
                    if event.type == "BOOKMARK":
                        continue
                    found = read_as(kind, event.object)
                    if event.type == "DELETED":
                        known.pop(found.name, None)
                        yield Change("DELETED", found)
                        continue
                    changed = found.name in known
                    known[found.name] = found
                    yield Change("MODIFIED" if changed else "ADDED", found)
        except Expired:
            continue
        except Unreachable:
            await asyncio.sleep(backoff.next_delay())
