"""Creates and updates objects by a mutate function, and skips the write if the object does not change."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Literal, NamedTuple

from kplane.provider.cache.cache import Cache
from kplane.provider.client.body import name_of, namespace_of
from kplane.provider.client.client import Client
from kplane.provider.errors import AlreadyExists, Conflict, NotFound, ProviderError
from kplane.provider.objects.conflicts import retry_on_conflict
from kplane.provider.objects.identity import Object, kind_of, title_of, uid_of
from kplane.provider.objects.missing import or_none

__all__ = ["Mutate", "Outcome", "create_or_update", "update_status"]

Mutate = Callable[[Object], object]
"""Changes an object, or a part of it, in place. Retries call it again, with another state of the object."""


class Outcome(NamedTuple):
    """Result of a write, and the latest state of the object."""

    result: Literal["created", "updated", "unchanged"]
    object: Object


async def create_or_update(client: Client, body: Object, mutate: Mutate, *, cache: Cache | None = None) -> Outcome:
    """Create the object that `body` names, or update it. Upstream's `controllerutil.CreateOrUpdate`.

    `mutate` changes a copy of the existing object, or of `body` if there is none. If the copy stays equal, the
    write is skipped. A conflict is retried with the latest state of the object. The status is not written.

    With a `cache`, the first attempt reads from the cache, so an object in its desired state costs no request. The
    `transform` of the cache must not drop fields, because the update would remove them. Raises
    ProviderError if `mutate` is a coroutine function or changes the name, and as `Client.create` and `Client.replace`.
    """
    kind, name, namespace = kind_of(body), name_of(body), namespace_of(body)
    _require_plain(mutate)
    caches = [] if cache is None else [cache]

    async def attempt() -> Outcome:
        existing = await or_none(caches.pop().get(kind, name, namespace=namespace)) if caches else None
        if existing is None:
            # The scope of the cache may exclude the object, or another program may have just created it.
            existing = await or_none(client.get(kind, name, namespace=namespace))
        desired = copy.deepcopy(body if existing is None else existing)
        mutate(desired)
        _require_same(body, desired)
        if existing is None:
            try:
                return Outcome("created", await client.create(kind, desired))
            except AlreadyExists as error:
                # The next attempt reads and updates the object.
                raise Conflict(error.status, "Conflict", error.message) from error
        if desired == existing:
            return Outcome("unchanged", existing)
        return Outcome("updated", await client.replace(kind, desired))

    return await retry_on_conflict(attempt)


async def update_status(client: Client, found: Object, mutate: Mutate) -> Object | None:
    """Write the status of an object if `mutate` changes it. Returns its latest state, or None if it is gone.

    `mutate` gets the status, which is empty at first, and changes it. `found` is the object as it was read. A conflict
    is retried with the latest state of the object, so conditions of other programs stay. An object of the same name
    with another uid is left alone. Raises ProviderError if `mutate` is a coroutine function.
    """
    kind, name, namespace, uid = kind_of(found), name_of(found), namespace_of(found), uid_of(found)
    _require_plain(mutate)
    # The first attempt uses the given state. Retries read the object.
    states: list[Object] = [found]

    async def attempt() -> Object | None:
        existing = states.pop() if states else await or_none(client.get(kind, name, namespace=namespace))
        if existing is None or uid_of(existing) != uid:
            return None
        status = copy.deepcopy(existing.get("status") or {})
        mutate(status)
        if status == (existing.get("status") or {}):
            return existing
        try:
            return await client.replace(kind, {**existing, "status": status}, subresource="status")
        except NotFound as error:
            if await or_none(client.get(kind, name, namespace=namespace)) is None:
                return None
            raise ProviderError(
                f"failed to write the status of {title_of(found)}: {error}; its CustomResourceDefinition needs"
                " subresources.status"
            ) from error

    return await retry_on_conflict(attempt)


def _require_plain(mutate: Mutate) -> None:
    if inspect.iscoroutinefunction(mutate):
        raise ProviderError("mutate is a coroutine function: give a plain one, and await before")


def _require_same(body: Object, desired: Object) -> None:
    if (kind_of(desired), name_of(desired), namespace_of(desired)) != (
        kind_of(body),
        name_of(body),
        namespace_of(body),
    ):
        raise ProviderError(f"mutate made {title_of(desired)} of {title_of(body)}: kind and names must stay")
