"""Finalizers, which keep an object until its cleanup is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from kplane.provider.client.body import name_of, namespace_of
from kplane.provider.client.client import Client
from kplane.provider.errors import NotFound, ProviderError
from kplane.provider.objects.conflicts import retry_on_conflict
from kplane.provider.objects.identity import Object, title_of, uid_of
from kplane.provider.objects.missing import or_none
from kplane.provider.objects.view import View, view_of

__all__ = ["add_finalizer", "remove_finalizer"]

T = TypeVar("T")


async def add_finalizer(client: Client, found: T, finalizer: str, *, field_manager: str | None = None) -> T:
    """Add a finalizer to an object unless present, and return the latest state of the object: a dict, or an instance.

    Await this call before the work that the finalizer cleans up: an object without it can be deleted at any time.
    `field_manager` is by default that of the client.
    Raises ProviderError if the object is being deleted, because the API server accepts no finalizers then. Raises
    NotFound if the object is gone, and DecodeFailed if its class does not accept the latest state.
    """
    view = view_of(found)

    def added(existing: Object) -> list[str]:
        finalizers = _finalizers(existing)
        if finalizer in finalizers:
            return finalizers
        if existing["metadata"].get("deletionTimestamp"):
            raise ProviderError(f"{title_of(view.body)} is being deleted: it can get no finalizer {finalizer}")
        return [*finalizers, finalizer]

    # An instance shows that it has the finalizer. It may lack finalizers that its class does not keep.
    if not view.is_whole and finalizer in _finalizers(view.body):
        return found
    written = await _write(client, view, added, field_manager=field_manager)
    if written is None:
        raise NotFound(404, "NotFound", f"{title_of(view.body)} is gone")
    return view.restore(written, source=client.config.server)


async def remove_finalizer(client: Client, found: object, finalizer: str, *, field_manager: str | None = None) -> None:
    """Remove a finalizer from an object, if the object exists and has it.

    Await this call after the cleanup: if the process ends in between, its successor repeats the cleanup.
    `field_manager` is by default that of the client.
    """
    view = view_of(found)

    def removed(existing: Object) -> list[str]:
        return [other for other in _finalizers(existing) if other != finalizer]

    await _write(client, view, removed, field_manager=field_manager)


async def _write(
    client: Client, view: View[Any], change: Callable[[Object], list[str]], *, field_manager: str | None
) -> Object | None:
    """Write the finalizers that `change` returns. Returns None if the object is gone."""
    kind, name, namespace, uid = view.kind, name_of(view.body), namespace_of(view.body), view.uid
    # The first attempt uses the given state if it is whole. Retries read the object.
    states: list[Object] = [view.body] if view.is_whole else []

    async def attempt() -> Object | None:
        existing = states.pop() if states else await or_none(client.get(kind, name, namespace=namespace))
        if existing is None or uid_of(existing) != uid:
            return None
        finalizers = change(existing)
        if finalizers == _finalizers(existing):
            return existing
        # A merge patch replaces the whole list. The resourceVersion protects finalizers that others add meanwhile.
        metadata = {"resourceVersion": existing["metadata"]["resourceVersion"], "finalizers": finalizers}
        patch = client.patch(kind, name, {"metadata": metadata}, namespace=namespace, field_manager=field_manager)
        return await or_none(patch)

    return await retry_on_conflict(attempt)


def _finalizers(found: Object) -> list[str]:
    return [*(found["metadata"].get("finalizers") or ())]
