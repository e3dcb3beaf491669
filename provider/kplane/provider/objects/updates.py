"""Creates and updates objects by a mutate function, and skips the write if the object does not change."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Generic, Literal, NamedTuple, overload

from kplane.provider.cache.cache import Cache
from kplane.provider.client.body import name_of, namespace_of
from kplane.provider.client.client import Client
from kplane.provider.client.typed import ObjectT
from kplane.provider.errors import AlreadyExists, Conflict, NotFound, ProviderError
from kplane.provider.objects.conflicts import retry_on_conflict
from kplane.provider.objects.identity import Object, kind_of, title_of, uid_of
from kplane.provider.objects.missing import or_none
from kplane.provider.objects.view import view_of

__all__ = ["Mutate", "Outcome", "create_or_update", "update_status"]

Mutate = Callable[[Any], object]
"""Changes an object, or a part of it, in place. Retries call it again, with another state of the object.

It gets an instance if the object is one. For a frozen class it returns the changed instance."""


class Outcome(NamedTuple, Generic[ObjectT]):
    """Result of a write, and the latest state of the object."""

    result: Literal["created", "updated", "unchanged"]
    object: ObjectT


@overload
async def create_or_update(
    client: Client,
    body: Object,
    mutate: Callable[[Object], object],
    *,
    cache: Cache | None = None,
    field_manager: str | None = None,
) -> Outcome[Object]: ...
@overload
async def create_or_update(
    client: Client,
    body: ObjectT,
    mutate: Callable[[ObjectT], object],
    *,
    cache: Cache | None = None,
    field_manager: str | None = None,
) -> Outcome[ObjectT]: ...
async def create_or_update(
    client: Client,
    body: ObjectT,
    mutate: Mutate,
    *,
    cache: Cache | None = None,
    field_manager: str | None = None,
) -> Outcome[ObjectT]:
    """Create the object that `body` names, or update it. Upstream's `controllerutil.CreateOrUpdate`.

    `mutate` changes a copy of the existing object, or of `body` if there is none. If the copy stays equal, the
    write is skipped. A conflict is retried with the latest state of the object. The status is not written.

    If `body` is an instance, `mutate` gets an instance. It may return another one, as a frozen class needs. Fields of
    the existing object that the class does not keep stay.

    With a `cache`, the first attempt reads from the cache, so an object in its desired state costs no request. The
    `transform` of the cache must not drop fields, because the update would remove them. `field_manager` is by default
    that of the client. Raises ProviderError if `mutate` is a coroutine function or changes the name, and as
    `Client.create` and `Client.replace`.
    """
    view, source = view_of(body), client.config.server
    kind, name, namespace = view.kind, name_of(view.body), namespace_of(view.body)
    _require_plain(mutate)
    caches = [] if cache is None else [cache]

    async def attempt() -> Outcome[ObjectT]:
        existing = await or_none(caches.pop().get(kind, name, namespace=namespace)) if caches else None
        if existing is None:
            # The scope of the cache may exclude the object, or another program may have just created it.
            existing = await or_none(client.get(kind, name, namespace=namespace))
        state = view.body if existing is None else existing
        mutated = view.mutated(state, mutate, source=source)
        desired = state if mutated is None else mutated
        _require_same(view.body, desired)
        if existing is None:
            try:
                created = await client.create(kind, desired, field_manager=field_manager)
            except AlreadyExists as error:
                # The next attempt reads and updates the object.
                raise Conflict(error.status, "Conflict", error.message) from error
            return Outcome("created", view.restore(created, source=source))
        if mutated is None:
            return Outcome("unchanged", view.restore(existing, source=source))
        replaced = await client.replace(kind, mutated, field_manager=field_manager)
        return Outcome("updated", view.restore(replaced, source=source))

    return await retry_on_conflict(attempt)


async def update_status(
    client: Client, found: ObjectT, mutate: Mutate, *, field_manager: str | None = None
) -> ObjectT | None:
    """Write the status of an object if `mutate` changes it. Returns its latest state, or None if it is gone.

    `mutate` gets the status, which is empty at first, and changes it. `found` is the object as it was read. A conflict
    is retried with the latest state of the object, so conditions of other programs stay. An object of the same name
    with another uid is left alone. `field_manager` is by default that of the client. Raises ProviderError if `mutate`
    is a coroutine function.

    If `found` is an instance, `mutate` gets the attribute `status` of a copy. It may return another status, as a frozen
    class needs. A write then reads the object first, and fields of the status that the class does not keep stay. Raises
    DecodeFailed if the class does not accept the latest state.
    """
    view, source = view_of(found), client.config.server
    kind, name, namespace, uid = view.kind, name_of(view.body), namespace_of(view.body), view.uid
    _require_plain(mutate)
    if not view.is_whole and view.mutated(view.body, mutate, source=source, field="status") is None:
        return found
    # The first attempt uses the given state if it is whole. Retries read the object.
    states: list[Object] = [view.body] if view.is_whole else []

    async def attempt() -> ObjectT | None:
        existing = states.pop() if states else await or_none(client.get(kind, name, namespace=namespace))
        if existing is None or uid_of(existing) != uid:
            return None
        desired = view.mutated(existing, mutate, source=source, field="status")
        if desired is None:
            return view.restore(existing, source=source)
        try:
            written = await client.replace(kind, desired, subresource="status", field_manager=field_manager)
        except NotFound as error:
            if await or_none(client.get(kind, name, namespace=namespace)) is None:
                return None
            raise ProviderError(
                f"failed to write the status of {title_of(view.body)}: {error}; its CustomResourceDefinition needs"
                " subresources.status"
            ) from error
        return view.restore(written, source=source)

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
