"""Informers of the management cluster, which fill the stores."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn

from kplane.controlplane_operator.watch.cache import Store
from kplane.controlplane_operator.watch.stores import BUNDLES, LABEL_SELECTORS, Stores
from kplane.provider import Client, Informer
from kplane.provider.cache.server_state import ServerState

__all__ = ["Informers"]

_RELIST_SECONDS: Final = 600.0
"""Interval of lists. A watch that began before a restore of the etcd of the management cluster waits silently."""
_STALE_SECONDS: Final = 300.0
"""Maximum time for which a watch may fail before the operator is not ready."""


class Informers:
    """Fills the stores of the kinds that are watched in all namespaces, and the store of the bundles of add-ons.

    The informers run in every replica, so that a standby can take over at once. They get the answers to the writes of
    `client`.
    """

    def __init__(self, client: Client, *, stores: Stores, namespace: str) -> None:
        """Create the informers; `namespace` is the operator's own, which has the bundles."""
        server = ServerState()

        def mirror(store: Store, *, label_selector: str | None, namespace: str | None = None) -> Informer:
            return Informer(
                client,
                store.resource,
                namespace=namespace,
                label_selector=label_selector,
                relist_seconds=_RELIST_SECONDS,
                server=server,
            )

        pairs = [
            (store, mirror(store, label_selector=LABEL_SELECTORS.get(store.resource)))
            for store in stores.in_all_namespaces()
        ]
        pairs.append((stores.bundles, mirror(stores.bundles, label_selector=BUNDLES, namespace=namespace)))
        self._informers: Final = [informer for _, informer in pairs]
        self._registrations: Final = [store.follow(informer) for store, informer in pairs]
        for informer in self._informers:
            client.observe_writes(informer.observe)

    def tasks(self) -> dict[str, Coroutine[None, None, NoReturn]]:
        """Return the tasks that mirror each kind until cancelled, by name."""
        return {f"watching {informer}": informer.run() for informer in self._informers}

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
