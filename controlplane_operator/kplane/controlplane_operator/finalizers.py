"""Finalizer of the operator: the deletion of an object waits until the operator removes it."""

from __future__ import annotations

import contextlib
from typing import Any

from kplane.api import ResourceModel
from kplane.api.names import FINALIZER
from kplane.controlplane_operator.watch.cache import Object, Store
from kplane.provider import Client, NotFound

__all__ = ["add_finalizer", "remove_finalizer"]


async def add_finalizer(client: Client, obj: ResourceModel, *, store: Store) -> Object | None:
    """Add the finalizer; return the stored object, or None if it already has the finalizer.

    Raises Conflict if the object has changed since it was read.
    """
    finalizers = obj.metadata.finalizers
    if FINALIZER in finalizers:
        return None
    return await client.patch(store.resource, obj.name, _body(obj, [*finalizers, FINALIZER]))


async def remove_finalizer(client: Client, obj: ResourceModel, *, store: Store) -> None:
    """Remove the finalizer, so that the deletion can finish.

    Raises Conflict if the object has changed since it was read.
    """
    remaining = [finalizer for finalizer in obj.metadata.finalizers if finalizer != FINALIZER]
    with contextlib.suppress(NotFound):
        await client.patch(store.resource, obj.name, _body(obj, remaining))


def _body(obj: ResourceModel, finalizers: list[str]) -> dict[str, Any]:
    return {"metadata": {"finalizers": finalizers, "resourceVersion": obj.metadata.resource_version}}
