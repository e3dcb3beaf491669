"""Runs the handlers of a kopf operator against every cluster of a fleet.

kopf cancels every younger task of its loop when it stops, and takes over the signals of the main thread. So each
cluster has a thread, with an event loop and a kopf operator of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import datetime as dt
import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import uvloop
from multidict import CIMultiDict

from kplane.provider.access.config import ClusterConfig
from kplane.provider.access.credentials import Credentials
from kplane.provider.aio.backoff import Backoff
from kplane.provider.client.connections import Connections
from kplane.provider.client.lookup import Resolver
from kplane.provider.client.tls import ssl_context
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.cluster.context import cluster_context
from kplane.provider.cluster.engagement import Engagement
from kplane.provider.contrib.kopf.sockets import KopfSockets
from kplane.provider.errors import ProviderError
from kplane.provider.logs import log_fields

if TYPE_CHECKING:
    import kopf

__all__ = ["KopfAware"]

log: Final = logging.getLogger(__name__)

_IDENTITY: Final[Any] = "provider"
_STEADY_SECONDS: Final = 60.0
_LOGIN_SECONDS: Final = 5.0
_SESSION_MINUTES: Final = 10.0


class KopfAware:
    """Runs a kopf operator for every engaged cluster: `manager.add(KopfAware())`.

    Each operator runs the handlers of `registry`, by default the handlers that the program has registered with kopf's
    decorators. Handlers need no change. In a handler, `memo.cluster` and `current_cluster()` name the cluster. Each
    operator gets a copy of `memo` and of `settings`. Each operator runs in its own thread: handlers do not share the
    manager's loop, queues and limits. Operators log in with the current credentials of the cluster, and ignore login
    handlers of the registry. Handlers for startup and cleanup are called once for each cluster.

    An operator that ends by itself is restarted, with delays up to `retry_maximum_seconds`. At the end of the
    engagement the operator is stopped, and awaited for `stop_seconds`. `before_write` of the manager does not guard the
    writes of handlers: after a takeover by another process, a handler that does not end may still write.

    Raises ProviderError if kopf is not installed.
    """

    def __init__(
        self,
        registry: kopf.OperatorRegistry | None = None,
        *,
        settings: kopf.OperatorSettings | None = None,
        memo: Mapping[str, Any] | None = None,
        stop_seconds: float = 30.0,
        retry_maximum_seconds: float = 60.0,
    ) -> None:
        try:
            import kopf
        except ImportError as error:
            raise ProviderError("KopfAware needs kopf: pip install kopf") from error
        self._registry = registry if registry is not None else kopf.get_default_registry()
        self._settings = settings if settings is not None else kopf.OperatorSettings()
        self._memo = dict(memo or {})
        self._stop_seconds = stop_seconds
        self._retry_maximum_seconds = retry_maximum_seconds

    async def engage(self, engagement: Engagement) -> None:
        """Run an operator until the engagement ends. Raises ProviderError if kopf cannot work on such a cluster."""
        if "@" in (engagement.cluster.config.proxy or ""):
            raise ProviderError(
                f"cluster {engagement.cluster.name!r} has a proxy with a password, which kopf would show in its logs"
            )
        if type(engagement.cluster).make_client is not Cluster.make_client:
            raise ProviderError(
                f"cluster {engagement.cluster.name!r} is a part of another one: kopf would see all of that"
            )
        operator = _Operator(engagement, registry=self._registry, settings=self._settings, memo=self._memo)
        engagement.on_close(lambda: operator.ended(within_seconds=self._stop_seconds))
        _ = engagement.spawn(operator.follow(), name="kopf credentials")
        _ = engagement.spawn(operator.run(retry_maximum_seconds=self._retry_maximum_seconds), name="kopf")


class _Operator:
    """Runs kopf for a cluster, in a new thread after each failure."""

    def __init__(
        self,
        engagement: Engagement,
        *,
        registry: kopf.OperatorRegistry,
        settings: kopf.OperatorSettings,
        memo: Mapping[str, Any],
    ) -> None:
        self._engagement = engagement
        self._name = engagement.cluster.name
        self._config = engagement.cluster.config
        self._registry = registry
        self._settings = settings
        self._memo = memo
        self._stop: _Stop | None = None
        self._thread: threading.Thread | None = None
        self._thread_ended = asyncio.Event()
        self._thread_ended.set()

    async def follow(self) -> None:
        """Take over renewed credentials for the next login."""
        async for cluster in self._engagement.changes():
            self._config = cluster.config

    async def run(self, *, retry_maximum_seconds: float) -> None:
        """Run kopf until cancelled. Restarts kopf if it ends by itself."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(initial_seconds=1.0, maximum_seconds=retry_maximum_seconds)
        try:
            while True:
                began = loop.time()
                self._stop = _Stop()
                self._thread_ended.clear()
                self._thread = threading.Thread(
                    target=self._work, args=(loop, self._stop), name=f"kopf {self._name}", daemon=True
                )
                self._thread.start()
                await self._thread_ended.wait()
                if loop.time() - began > _STEADY_SECONDS:
                    backoff.reset()
                delay = backoff.next_delay()
                log.warning("cluster %s: kopf has ended; restarting it in %.1f s", self._name, delay)
                await asyncio.sleep(delay)
        finally:
            if self._stop is not None:
                self._stop.set()

    async def ended(self, *, within_seconds: float) -> None:
        """Wait until the thread has ended, at most `within_seconds`."""
        try:
            async with asyncio.timeout(within_seconds):
                await self._thread_ended.wait()
            if self._thread is not None:
                self._thread.join()  # returns at once: the event is the last action of the thread
        except TimeoutError:
            log.warning(
                "cluster %s: failed to stop kopf within %g s; a blocking handler still runs", self._name, within_seconds
            )

    def _work(self, loop: asyncio.AbstractEventLoop, stop: _Stop) -> None:
        try:
            with (
                cluster_context(self._name),
                log_fields(cluster=self._name),
                asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            ):
                runner.run(self._operate(stop))
        except Exception:
            log.exception("cluster %s: kopf failed", self._name)
        finally:
            with contextlib.suppress(RuntimeError):  # the manager's loop is closed
                loop.call_soon_threadsafe(self._thread_ended.set)

    async def _operate(self, stop: _Stop) -> None:
        import kopf

        login = _Login(self)
        settings = _copy(self._settings)
        # Without this setting, kopf kills the process if its loop is slow to end.
        settings.process.ultimate_exiting_timeout = None
        try:
            await kopf.operator(
                registry=_registry(self._registry, login),
                settings=settings,
                memo=kopf.Memo({**self._memo, "cluster": self._name}),
                clusterwide=True,
                standalone=True,
                stop_flag=stop.begin(),
                identity=_IDENTITY,
            )
        finally:
            await login.aclose()

    @property
    def config(self) -> ClusterConfig:
        """Current configuration of the cluster. The thread of the operator reads it."""
        return self._config


class _Stop:
    """Stop flag for the loop of another thread. It may be set before that loop has begun."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flag: asyncio.Event | None = None

    def begin(self) -> asyncio.Event:
        """Return the event that tells the running loop to stop."""
        with self._lock:
            self._loop, self._flag = asyncio.get_running_loop(), asyncio.Event()
            if self._is_set:
                self._flag.set()
            return self._flag

    def set(self) -> None:
        """Ask the loop to stop. Safe in any thread."""
        with self._lock:
            self._is_set = True
            if self._loop is not None and self._flag is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._flag.set)


class _Login:
    """Login handler of kopf: opens the first session, and a new session after an expiry or a refusal."""

    def __init__(self, operator: _Operator) -> None:
        self._operator = operator
        self._connections = Connections()
        self._config: ClusterConfig | None = None
        self._credentials: Credentials | None = None
        self._last_config: ClusterConfig | None = None
        self._expires = dt.datetime.now(dt.UTC)
        self._sessions: list[aiohttp.ClientSession] = []
        self._sockets = KopfSockets()

    async def log_in(self, **_: Any) -> kopf.AiohttpSession:
        """Return a new session. Raises kopf.TemporaryError if the server refused the current credentials."""
        import kopf

        config = await self._current_config()
        if config is self._last_config and dt.datetime.now(dt.UTC) < self._expires:
            # Without an error, kopf would log in again and again without a delay.
            raise kopf.TemporaryError(
                f"{config.server} refuses the credentials, and there are no others yet", delay=_LOGIN_SECONDS
            )
        context = await asyncio.to_thread(ssl_context, config)
        headers = CIMultiDict({"Authorization": f"Bearer {config.token}"} if config.token is not None else {})
        if config.impersonation is not None:
            headers.extend(config.impersonation.headers())
        connector = aiohttp.TCPConnector(limit=0, ssl=context, resolver=Resolver(), socket_factory=self._sockets.open)
        session = aiohttp.ClientSession(connector=connector, headers=headers, proxy=config.proxy)
        self._sessions = [*(former for former in self._sessions if not former.closed), session]
        self._last_config = config
        self._expires = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=_SESSION_MINUTES)
        return kopf.AiohttpSession(server=config.server, aiohttp_session=session, expiration=self._expires)

    async def aclose(self) -> None:
        """Close sessions and connections that kopf has left open, before its loop ends."""
        for session in self._sessions:
            await session.close()
        if self._credentials is not None:
            await self._credentials.aclose()
        await self._connections.aclose()
        await self._sockets.closed()

    async def _current_config(self) -> ClusterConfig:
        config = self._operator.config
        if self._credentials is None or config is not self._config:
            self._config = config
            self._credentials = Credentials(config, plugin_runs=self._connections.plugin_runs)
            return await self._credentials.current()
        if self._last_config is not None and dt.datetime.now(dt.UTC) < self._expires:
            return await self._credentials.refused(self._last_config)
        return await self._credentials.current()


def _copy(settings: kopf.OperatorSettings) -> kopf.OperatorSettings:
    """Return a copy of settings that an operator may change. The copy shares the executor of synchronous handlers."""
    return dataclasses.replace(
        settings, **{field.name: copy.copy(getattr(settings, field.name)) for field in dataclasses.fields(settings)}
    )


def _registry(registry: kopf.OperatorRegistry, login: _Login) -> kopf.OperatorRegistry:
    """Return a copy of a registry whose only login handler is ours: other handlers might log in to another cluster."""
    import kopf

    own = copy.copy(registry)
    # kopf has no public way to copy some handlers of a registry.
    activities = own._activities = type(registry._activities)()  # noqa: SLF001
    for handler in registry._activities.get_all_handlers():  # noqa: SLF001
        if handler.activity is None or handler.activity.value != "authentication":
            activities.append(handler)
    kopf.on.login(registry=own, id="provider", backoff=_LOGIN_SECONDS)(login.log_in)
    return own
