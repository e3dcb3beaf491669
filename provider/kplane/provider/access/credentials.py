"""Current credentials of a client: tokens from files, and credentials of exec plugins."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from kplane.provider.access.config import ClusterConfig
from kplane.provider.access.exec_plugin import ExecCredential, ExecPlugin
from kplane.provider.aio.turns import Turns
from kplane.provider.errors import KubeconfigError

__all__ = ["Credentials"]

_TOKEN_CACHED_SECONDS: Final = 60.0
_RUN_AGAIN_SECONDS: Final = 10.0
"""Minimum time between runs of a plugin for a refused credential, because a server may refuse every credential."""
_FAILED_SECONDS: Final = 2.0
"""Time for which callers share the failure of a plugin. Each watch of a cluster is a caller."""


class Credentials:
    """Keeps the credentials of a configuration up to date.

    `current()` returns a configuration with token and client certificate filled in, and the same object until the
    credentials change.
    """

    def __init__(self, config: ClusterConfig, *, plugin_runs: Turns) -> None:
        self._config = config
        self._plugin_runs = plugin_runs
        self._lock = asyncio.Lock()
        self._shown: ClusterConfig | None = None
        self._credential: ExecCredential | None = None
        self._got_at = 0.0
        self._failure: str | None = None
        self._failed_at = 0.0
        self._threads: set[asyncio.Future[str]] = set()

    async def current(self) -> ClusterConfig:
        """Return the credentials for the next request. Raises KubeconfigError if they cannot be renewed."""
        if not self._renewable:
            return self._config
        if (shown := self._fresh()) is not None:
            return shown
        async with self._lock:
            return self._fresh() or await self._renew()

    async def refused(self, shown: ClusterConfig) -> ClusterConfig:
        """Return credentials for a retry after a 401, or `shown` if the credentials have not changed."""
        if not self._renewable:
            return shown
        async with self._lock:
            if self._shown is not shown and self._shown is not None:
                return self._shown
            if self._config.exec_plugin is not None and time.monotonic() - self._got_at < _RUN_AGAIN_SECONDS:
                return shown
            return await self._renew()

    async def aclose(self) -> None:
        """Wait for threads, which cannot be cancelled."""
        if self._threads:
            await asyncio.wait(tuple(self._threads))

    @property
    def _renewable(self) -> bool:
        return self._config.token_file is not None or self._config.exec_plugin is not None

    def _fresh(self) -> ClusterConfig | None:
        if self._shown is None:
            return None
        if self._credential is not None:
            return None if self._credential.expired else self._shown
        return self._shown if time.monotonic() - self._got_at <= _TOKEN_CACHED_SECONDS else None

    async def _renew(self) -> ClusterConfig:
        plugin = self._config.exec_plugin
        if plugin is None:
            token = await self._read_token()
            renewed = replace(self._config, token=token, token_file=None)
        else:
            credential = await self._run(plugin)
            renewed = replace(
                self._config,
                token=credential.token,
                client_certificate=credential.certificate,
                client_key=credential.key,
                exec_plugin=None,
            )
            self._credential = credential
        self._got_at = time.monotonic()
        if self._shown is None or renewed != self._shown:
            self._shown = renewed
        return self._shown

    async def _run(self, plugin: ExecPlugin) -> ExecCredential:
        if self._failure is not None and time.monotonic() - self._failed_at < _FAILED_SECONDS:
            raise KubeconfigError(self._failure)
        self._failure = None
        try:
            async with self._plugin_runs.turn(self):
                return await plugin.run(cluster=_cluster_info(self._config))
        except KubeconfigError as error:
            self._failure, self._failed_at = str(error), time.monotonic()
            raise

    async def _read_token(self) -> str:
        path = self._config.token_file
        assert path is not None  # noqa: S101 - for the type checker
        try:
            token = (await self._in_thread(lambda: path.read_text("ascii"))).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise KubeconfigError(f"cannot read the token file {path}: {error}") from error
        if not token or not token.isprintable():
            raise KubeconfigError(f"the token file {path} holds no token")
        return token

    async def _in_thread(self, function: Callable[[], str]) -> str:
        """Call a blocking function in a thread. A thread cannot be cancelled, so `aclose` waits for it."""
        future = asyncio.get_running_loop().run_in_executor(None, function)
        self._threads.add(future)
        future.add_done_callback(self._thread_ended)
        return await asyncio.shield(future)

    def _thread_ended(self, future: asyncio.Future[str]) -> None:
        self._threads.discard(future)
        if not future.cancelled():
            # Read the failure in case the caller was cancelled; otherwise asyncio would log it.
            future.exception()


def _cluster_info(config: ClusterConfig) -> Mapping[str, Any]:
    info = {"server": config.server, "tls-server-name": config.tls_server_name, "proxy-url": config.proxy}
    if config.ca_data is not None:
        info["certificate-authority-data"] = base64.b64encode(config.ca_data).decode()
    return {key: value for key, value in info.items() if value is not None}
