"""Watch of the management cluster with kopf: each handler only parses an event and passes it to a store.

kopf runs in a thread with its own event loop, because it cancels all younger tasks of its loop when it stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn

import aiohttp
import uvloop

from kplane.controlplane_operator.watch.backoff import jittered, retry_backoff
from kplane.controlplane_operator.watch.cache import Object, Store
from kplane.controlplane_operator.watch.lean_kopf import kopf
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import Client, ClusterConfig, ProviderError, Resource
from kplane.provider.client.tls import ssl_context
from kplane.provider.contrib.kopf.sockets import KopfSockets

__all__ = ["KopfFeeds", "Resync"]

_log: Final = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 120.0
_STALE_SECONDS: Final = 300.0
"""Maximum age of the latest list. It allows for a missed list and a slow next one."""


class Resync:
    """Fills the stores before the first reconcile, and compares them with the cluster periodically."""

    def __init__(
        self,
        client: Client,
        *,
        stores: Stores,
        label_selectors: Mapping[Resource, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` returns monotonic seconds."""
        self.synced: Final = asyncio.Event()
        self._client = client
        self._stores = stores
        self._label_selectors = label_selectors
        self._backoff = retry_backoff(first_seconds=0.2)
        self._asked = asyncio.Event()
        self._listed = asyncio.Condition()
        self._clock = clock
        self._listed_at: float | None = None
        """Start of the latest complete list; its contents are at least as new as that."""
        self._begun = 0
        """Number of the latest list."""
        self._complete = 0
        """Number of the latest list that succeeded."""

    async def run(self) -> NoReturn:
        """List until cancelled; `synced` is set after the first complete list."""
        while True:
            self._asked.clear()
            self._begun += 1
            began = self._clock()
            try:
                await self._list_all()
            except ProviderError as error:
                pause = self._backoff.next_delay()
                _log.warning("cannot list the management cluster, again in %.1f s: %s", pause, error)
                await asyncio.sleep(pause)
            else:
                self._backoff.reset()
                self._listed_at = began
                self.synced.set()
                async with self._listed:
                    self._complete = self._begun
                    self._listed.notify_all()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(jittered(_PERIOD_SECONDS)):
                        await self._asked.wait()

    def problem(self) -> str | None:
        """Return a sentence for /readyz if the latest list is missing or too old; None otherwise."""
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
        """Request a list now; another list follows if one is in progress."""
        self._asked.set()

    async def anew(self) -> None:
        """Request a list and wait until a list that starts after this call is complete."""
        number = self._begun + 1
        self.ask()
        async with self._listed:
            await self._listed.wait_for(lambda: self._complete >= number)

    async def next(self) -> None:
        """Wait until the next list is complete."""
        number = self._complete
        async with self._listed:
            await self._listed.wait_for(lambda: self._complete > number)

    async def _list_all(self) -> None:
        for store in self._stores.watched():
            listing = await self._client.list(store.resource, label_selector=self._label_selectors.get(store.resource))
            store.replace(listing.items, resource_version=listing.resource_version)


_IDENTITY: Final[Any] = "controlplane-operator"
_STEADY_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 15.0
_LOGIN_SECONDS: Final = 2.0
"""Delay between attempts to read the kubeconfig; the default of kopf is a minute."""


class KopfFeeds:
    """Feeds stores with the events of their kinds, and restarts kopf whenever it stops."""

    def __init__(
        self,
        load_config: Callable[[], ClusterConfig],
        *,
        stores: Sequence[Store],
        label_selectors: dict[Resource, str],
        listed: Callable[[], None],
    ) -> None:
        """`load_config` is called for every login of kopf, so that renewed credentials are used.

        `listed` is called when kopf has listed a kind, because kopf reports no deletion from before its list.
        """
        self._load_config = load_config
        self._stores = tuple(stores)
        self._label_selectors = label_selectors
        self._listed = listed
        self._sockets = KopfSockets()

    async def run(self) -> None:
        """Watch until cancelled. Raises no other error."""
        backoff = retry_backoff()
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            await self._follow_once()
            if loop.time() - started > _STEADY_SECONDS:
                backoff.reset()
            await asyncio.sleep(backoff.next_delay())

    async def _follow_once(self) -> None:
        loop = asyncio.get_running_loop()
        stop, ended = threading.Event(), asyncio.Event()
        thread = threading.Thread(target=self._run_kopf, args=(loop, stop, ended), name="kopf", daemon=True)
        thread.start()
        try:
            await ended.wait()
        finally:
            stop.set()
            async with asyncio.timeout(_STOP_SECONDS):
                await asyncio.shield(ended.wait())

    def _run_kopf(self, loop: asyncio.AbstractEventLoop, stop: threading.Event, ended: asyncio.Event) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._operator(loop, stop))
        except Exception:  # noqa: BLE001 - kopf is restarted after any error
            _log.exception("watching the management cluster failed; it starts again")
        finally:
            loop.call_soon_threadsafe(ended.set)

    async def _operator(self, loop: asyncio.AbstractEventLoop, stop: threading.Event) -> None:
        registry = kopf.OperatorRegistry()
        self._log_in(registry, loop=loop)
        for store in self._stores:
            self._register(store, registry=registry, loop=loop)
        try:
            await kopf.operator(
                registry=registry,
                settings=self._settings(),
                clusterwide=True,
                stop_flag=stop,
                # The identity is unused without peering. kopf's default reads the user name, which a container may
                # lack.
                identity=_IDENTITY,
            )
        finally:
            # kopf waits for this flag in its own thread, and the event loop does not end before that thread.
            stop.set()
            await self._sockets.closed()

    def _register(self, store: Store, *, registry: kopf.OperatorRegistry, loop: asyncio.AbstractEventLoop) -> None:
        group, _, version = store.resource.api_version.rpartition("/")

        @kopf.on.event(group, version, store.resource.plural, registry=registry)
        async def handle(event: kopf.RawEvent, **_: Any) -> None:
            # kopf keeps this object, and the stores remove managedFields. So metadata is copied; deeper levels are not
            # changed.
            obj: Object = {**event["object"], "metadata": {**event["object"]["metadata"]}}
            loop.call_soon_threadsafe(store.remove if event["type"] == "DELETED" else store.apply, obj)

    def _log_in(self, registry: kopf.OperatorRegistry, *, loop: asyncio.AbstractEventLoop) -> None:
        plurals = {store.resource.plural for store in self._stores}

        async def answered(_session: Any, _context: Any, request: aiohttp.TraceRequestEndParams) -> None:
            if request.url.name in plurals and "watch" not in request.url.query:
                loop.call_soon_threadsafe(self._listed)

        @kopf.on.login(registry=registry, backoff=_LOGIN_SECONDS)
        async def login(**_: Any) -> kopf.AiohttpSession:
            config = self._load_config()
            token = config.token if config.token_file is None else config.token_file.read_text().strip()
            trace = aiohttp.TraceConfig()
            trace.on_request_end.append(answered)
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=ssl_context(config), socket_factory=self._sockets.open),
                headers={"Authorization": f"Bearer {token}"} if token else {},
                trace_configs=[trace],
            )
            return kopf.AiohttpSession(server=config.server, aiohttp_session=session)

    def _settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        # otherwise kopf kills this process if its event loop is slow to end
        settings.process.ultimate_exiting_timeout = None
        settings.scanning.disabled = True
        settings.peering.standalone = True
        settings.posting.enabled = False
        settings.queueing.idle_timeout = 0.1
        settings.networking.error_backoffs = (0.5, 1, 2, 4)
        settings.networking.connect_timeout = 5.0
        settings.networking.request_timeout = 30.0
        settings.watching.connect_timeout = 5.0
        settings.watching.chunk_size = 500
        for resource, selector in self._label_selectors.items():
            settings.watching.label_selectors[resource.api_version, resource.plural] = selector
        return settings
