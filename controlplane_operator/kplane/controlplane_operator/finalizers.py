"""The operator's finalizer: while an object has it, a deletion waits for the operator."""

from __future__ import annotations

import contextlib
from typing import Any

from kplane.api import ResourceModel
from kplane.api.names import FINALIZER
from kplane.controlplane_operator.watch.cache import Object, Store
from kplane.provider import Client, NotFound

__all__ = ["add_finalizer", "remove_finalizer"]


async def add_finalizer(client: Client, obj: ResourceModel, *, store: Store) -> Object | None:
    """Have a deletion of an object wait; returns the object as it was stored, None if it has the finalizer already.

    `store` takes in what was stored. Raises Conflict where the object was changed since it was read.
    """
    finalizers = obj.metadata.finalizers
    if FINALIZER in finalizers:
        return None
    stored = await client.patch(store.resource, obj.name, _body(obj, [*finalizers, FINALIZER]))
    store.apply(stored)
    return stored


async def remove_finalizer(client: Client, obj: ResourceModel, *, store: Store) -> None:
    """Let a deletion of an object end. Raises Conflict where the object was changed since it was read."""
    left = [each for each in obj.metadata.finalizers if each != FINALIZER]
    with contextlib.suppress(NotFound):
        await client.patch(store.resource, obj.name, _body(obj, left))


def _body(obj: ResourceModel, finalizers: list[str]) -> dict[str, Any]:
    return {"metadata": {"finalizers": finalizers, "resourceVersion": obj.metadata.resource_version}}
