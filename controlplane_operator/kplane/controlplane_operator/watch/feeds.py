"""Follows the management cluster with kopf: each handler parses an event and hands it to a store, and nothing else.

kopf runs in a thread with an event loop of its own, because when it stops it cancels every task of its loop that is
younger than itself, whoever made it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import aiohttp
import kopf
import uvloop

from kplane.controlplane_operator.watch.backoff import Backoff
from kplane.controlplane_operator.watch.cache import Object, Store
from kplane.provider import ClusterConfig, Resource
from kplane.provider.client.tls import ssl_context
from kplane.provider.contrib.kopf.sockets import KopfSockets

__all__ = ["KopfFeeds"]

_log: Final = logging.getLogger(__name__)

_IDENTITY: Final[Any] = "controlplane-operator"
_STEADY_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 15.0
_LOGIN_SECONDS: Final = 2.0
"""Between two tries to read the kubeconfig; by default kopf takes a minute."""


class KopfFeeds:
    """Feeds stores with the events of their kinds, and starts again by itself whenever kopf gives up."""

    def __init__(
        self,
        load_config: Callable[[], ClusterConfig],
        *,
        stores: Sequence[Store],
        label_selectors: dict[Resource, str],
        listed: Callable[[], None],
    ) -> None:
        """`load_config` is called for every connection, so that renewed credentials count.

        `listed` is called when kopf has listed a kind: of what was deleted before that it tells nobody.
        """
        self._load_config = load_config
        self._stores = tuple(stores)
        self._label_selectors = label_selectors
        self._listed = listed
        self._sockets = KopfSockets()

    async def run(self) -> None:
        """Follow until cancelled. Never raises anything else."""
        backoff: Backoff[None] = Backoff()
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            await self._follow_once()
            if loop.time() - started > _STEADY_SECONDS:
                backoff.forget(None)
            await asyncio.sleep(backoff.next(None))

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
        except Exception:  # noqa: BLE001 - whatever ends kopf, it is started again
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
                # Of no use without peering. By default kopf asks for the user's name, which in a container may be none.
                identity=_IDENTITY,
            )
        finally:
            # kopf waits for the flag in a thread of its own, and its loop does not end before that thread does.
            stop.set()
            await self._sockets.closed()

    def _register(self, store: Store, *, registry: kopf.OperatorRegistry, loop: asyncio.AbstractEventLoop) -> None:
        group, _, version = store.resource.api_version.rpartition("/")

        @kopf.on.event(group, version, store.resource.plural, registry=registry)
        async def handle(event: kopf.RawEvent, **_: Any) -> None:
            # kopf keeps what it gives, and the stores take managedFields out; nobody changes anything below that.
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
        settings.process.ultimate_exiting_timeout = None  # else kopf kills our process when its loop is slow to end
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
