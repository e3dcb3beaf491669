"""Fills the stores of an operator: with its informers, or as they do, without their tasks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable

from kplane.controlplane_operator.watch.cache import MergedStore, Store, key_of
from kplane.controlplane_operator.watch.informers import Informers, cache_scopes
from kplane.controlplane_operator.watch.secrets import OWN, SecretWatches
from kplane.controlplane_operator.watch.stores import BUNDLES, LABEL_SELECTORS, Stores
from kplane.provider import Cache, Client
from kplane.provider.cache.scope import scope_of
from kplane.provider.client.resources import CONFIG_MAPS, SECRETS
from kplane.provider.client.written import Written

__all__ = ["informing", "list_again", "store_writes"]


@contextlib.asynccontextmanager
async def informing(client: Client, stores: Stores, *, namespace: str = "kplane-system") -> AsyncIterator[Informers]:
    """Run the informers within the context, which begins before the stores have any object."""
    cache = Cache(client, scope_of=lambda resource: scope_of(resource, cache_scopes(namespace)))
    try:
        yield Informers(cache, stores=stores)
    finally:
        await cache.aclose()


def store_writes(client: Client, stores: Stores) -> None:
    """Put the answer to each write into the store of its kind. An object that a write removes leaves its store."""
    mirrored = {store.resource: store for store in stores.cached()}

    def observe(written: Written) -> None:
        store = mirrored.get(written.resource)
        if store is None:
            return
        if written.object is not None:
            store.apply(written.object)
            return
        stored = store.get((written.namespace, written.name))
        if stored is not None and stored["metadata"]["uid"] == written.uid:
            store.remove(stored)

    client.observe_writes(observe)
    client.observe_writes(SecretWatches(client, {OWN: stores.secrets}).observe)


async def list_again(client: Client, stores: Iterable[Store]) -> None:
    """Fill the stores with the present objects, of Secrets with those of control planes, and remove all others."""
    selectors = {**LABEL_SELECTORS, SECRETS: OWN, CONFIG_MAPS: BUNDLES}
    for store in stores:
        listing = await client.list(store.resource, label_selector=selectors.get(store.resource))
        present = {key_of(obj): obj for obj in listing.items}
        if isinstance(store, MergedStore):
            for namespace in {key_of(obj)[0] for obj in (*store, *listing.items)}:
                neighbours = [obj for key, obj in present.items() if key[0] == namespace]
                store.replace(neighbours, resource_version=listing.resource_version, namespace=namespace)
            continue
        for obj in present.values():
            store.apply(obj)
        for obj in store:
            if key_of(obj) not in present:
                store.remove(obj)
