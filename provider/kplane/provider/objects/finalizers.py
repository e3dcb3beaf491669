"""Finalizers, which keep an object until its cleanup is done."""

from __future__ import annotations

from collections.abc import Callable

from kplane.provider.client.body import name_of, namespace_of
from kplane.provider.client.client import Client
from kplane.provider.errors import NotFound, ProviderError
from kplane.provider.objects.conflicts import retry_on_conflict
from kplane.provider.objects.identity import Object, kind_of, title_of, uid_of
from kplane.provider.objects.missing import or_none

__all__ = ["add_finalizer", "remove_finalizer"]


async def add_finalizer(client: Client, found: Object, finalizer: str) -> Object:
    """Add a finalizer to an object unless present, and return the latest state of the object.

    Await this call before the work that the finalizer cleans up: an object without it can be deleted at any time.
    Raises ProviderError if the object is being deleted, because the API server accepts no finalizers then. Raises
    NotFound if the object is gone.
    """

    def added(existing: Object) -> list[str]:
        finalizers = _finalizers(existing)
        if finalizer in finalizers:
            return finalizers
        if existing["metadata"].get("deletionTimestamp"):
            raise ProviderError(f"{title_of(found)} is being deleted: it can get no finalizer {finalizer}")
        return [*finalizers, finalizer]

    written = await _write(client, found, added)
    if written is None:
        raise NotFound(404, "NotFound", f"{title_of(found)} is gone")
    return written


async def remove_finalizer(client: Client, found: Object, finalizer: str) -> None:
    """Remove a finalizer from an object, if the object exists and has it.

    Await this call after the cleanup: if the process ends in between, its successor repeats the cleanup.
    """
    await _write(client, found, lambda existing: [other for other in _finalizers(existing) if other != finalizer])


async def _write(client: Client, found: Object, change: Callable[[Object], list[str]]) -> Object | None:
    """Write the finalizers that `change` returns. Returns None if the object is gone."""
    kind, name, namespace, uid = kind_of(found), name_of(found), namespace_of(found), uid_of(found)
    # The first attempt uses the given state. Retries read the object.
    states: list[Object] = [found]

    async def attempt() -> Object | None:
        existing = states.pop() if states else await or_none(client.get(kind, name, namespace=namespace))
        if existing is None or uid_of(existing) != uid:
            return None
        finalizers = change(existing)
        if finalizers == _finalizers(existing):
            return existing
        # A merge patch replaces the whole list. The resourceVersion protects finalizers that others add meanwhile.
        metadata = {"resourceVersion": existing["metadata"]["resourceVersion"], "finalizers": finalizers}
        return await or_none(client.patch(kind, name, {"metadata": metadata}, namespace=namespace))

    return await retry_on_conflict(attempt)


def _finalizers(found: Object) -> list[str]:
    return [*(found["metadata"].get("finalizers") or ())]
