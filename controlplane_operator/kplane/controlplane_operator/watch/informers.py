"""Informers of the management cluster, which fill the stores."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from kplane.api.names import REGISTRATION_LABEL
from kplane.controlplane_operator.watch.stores import BUNDLES, LABEL_SELECTORS, Stores
from kplane.provider import Cache, CacheScope
from kplane.provider.client.kinds import parse_kind
from kplane.provider.client.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
)

__all__ = ["RBAC_KINDS", "RELIST_SECONDS", "Informers", "cache_scopes"]

RELIST_SECONDS: Final = 600.0
"""Interval of lists. A watch that began before a restore of the etcd of the management cluster waits silently."""
_STALE_SECONDS: Final = 300.0
"""Maximum time for which a watch may fail before the operator is not ready."""

RBAC_KINDS: Final = (ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, SERVICE_ACCOUNTS)
"""Kinds of the rights of mcm. The cache has the objects of registrations, which have a label."""


def cache_scopes(namespace: str) -> Mapping[str, CacheScope]:
    """Return the objects that the operator caches, by kind, if not all of a kind: `namespace` is the operator's own."""
    selectors = LABEL_SELECTORS | dict.fromkeys(RBAC_KINDS, REGISTRATION_LABEL)
    return {
        **{str(parse_kind(kind)): CacheScope(label_selector=selector) for kind, selector in selectors.items()},
        str(parse_kind(CONFIG_MAPS)): CacheScope(label_selector=BUNDLES, namespaces=(namespace,)),
    }


class Informers:
    """Fills the stores from the cache, except the Secrets, whose namespaces change.

    The informers run in every replica, so that a standby can take over at once. They also get the answers to the
    operator's own writes.
    """

    def __init__(self, cache: Cache, *, stores: Stores) -> None:
        """Start the informers."""
        pairs = [(store, cache.informer(store.resource)) for store in stores.cached()]
        self._informers: Final = [informer for _, informer in pairs]
        self._registrations: Final = [store.follow(informer) for store, informer in pairs]

    async def wait_synced(self) -> None:
        """Wait until the stores have all objects."""
        for registration in self._registrations:
            await registration.synced.wait()

    async def refresh(self) -> None:
        """List all kinds again, and wait until the stores have every change from before this call."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.refresh(), name=f"list {informer}")
        await self.wait_synced()

    def problem(self) -> str | None:
        """Return a sentence for /readyz if a kind was not listed yet, or could not be watched for 300 s."""
        return next(self._problems(), None)

    def _problems(self) -> Iterator[str]:
        for informer, registration in zip(self._informers, self._registrations, strict=True):
            if not registration.synced.is_set():
                why = f": {informer.error}" if informer.error else ""
                yield f"the {informer.resource.plural} of the management cluster were not listed yet{why}"
            elif (seconds := informer.down_seconds) > _STALE_SECONDS:
                since = datetime.now(UTC) - timedelta(seconds=seconds)
                yield (
                    f"the {informer.resource.plural} of the management cluster could not be watched since"
                    f" {since:%Y-%m-%dT%H:%M:%SZ}, {seconds:.0f} s ago: {informer.error}; what changed since then may"
                    " be unknown"
                )
