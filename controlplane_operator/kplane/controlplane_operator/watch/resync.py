"""Lists everything again, because a watch misses what went while it was cut off, and may miss more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn

from kplane.controlplane_operator.watch.backoff import Backoff, jittered
from kplane.controlplane_operator.watch.event_routing import Stores
from kplane.provider import Client, ProviderError, Resource

__all__ = ["Resync"]

_log: Final = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 120.0
_STALE_SECONDS: Final = 300.0
"""So old a list may be: one that was missed, and the next one that took its time, are nothing to worry about."""


class Resync:
    """Fills the stores before anything is reconciled, and compares them with the cluster ever after."""

    def __init__(
        self,
        client: Client,
        *,
        stores: Stores,
        label_selectors: Mapping[Resource, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` gives seconds that only grow."""
        self.synced: Final = asyncio.Event()
        self._client = client
        self._stores = stores
        self._label_selectors = label_selectors
        self._backoff: Backoff[None] = Backoff(first_seconds=0.2)
        self._asked = asyncio.Event()
        self._listed = asyncio.Condition()
        self._clock = clock
        self._listed_at: float | None = None
        """When what the latest complete list says was true at least."""
        self._begun = 0
        """Number of the latest list."""
        self._complete = 0
        """Number of the latest list that succeeded."""

    async def run(self) -> NoReturn:
        """List until cancelled; `synced` is set once everything was listed."""
        while True:
            self._asked.clear()
            self._begun += 1
            began = self._clock()
            try:
                await self._list_all()
            except ProviderError as error:
                pause = self._backoff.next(None)
                _log.warning("cannot list the management cluster, again in %.1f s: %s", pause, error)
                await asyncio.sleep(pause)
            else:
                self._backoff.forget(None)
                self._listed_at = began
                self.synced.set()
                async with self._listed:
                    self._complete = self._begun
                    self._listed.notify_all()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(jittered(_PERIOD_SECONDS)):
                        await self._asked.wait()

    def problem(self) -> str | None:
        """Say, for /readyz, how old what is known of the management cluster is, where that is too old to rely on."""
        if self._listed_at is None:
            return "the management cluster was not listed yet"
        seconds = self._clock() - self._listed_at
        if seconds <= _STALE_SECONDS:
            return None
        since = datetime.now(UTC) - timedelta(seconds=seconds)
        return (
            f"the management cluster could not be listed since {since:%Y-%m-%dT%H:%M:%SZ}, {seconds:.0f} s ago;"
            " what changed since then may be unknown"
        )

    def ask(self) -> None:
        """Have everything listed now, again where a list is being made."""
        self._asked.set()

    async def anew(self) -> None:
        """Have everything listed now; returns when it was."""
        wanted = self._begun + 1
        self.ask()
        async with self._listed:
            await self._listed.wait_for(lambda: self._complete >= wanted)

    async def next(self) -> None:
        """Return when everything was listed once more."""
        known = self._complete
        async with self._listed:
            await self._listed.wait_for(lambda: self._complete > known)

    async def _list_all(self) -> None:
        for store in self._stores.watched():
            found = await self._client.list(store.resource, label_selector=self._label_selectors.get(store.resource))
            store.replace(found.items, resource_version=found.resource_version)
