"""Client of Envoy's administration interface on a private Unix socket."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from types import TracebackType
from typing import Final, Self

import aiohttp

from kplane.gateway.envoy.names import ROUTES
from kplane.gateway.files import Versions

__all__ = ["Administration"]

_TIMEOUT: Final = aiohttp.ClientTimeout(total=5.0)
_VERSIONS: Final = {
    "listener_manager.lds.version_text": "listeners",
    "cluster_manager.cds.version_text": "clusters",
    f"http.gateway.rds.{ROUTES}.version_text": "routes",
}
_READY: Final = {"server.live": 1, "listener_manager.workers_started": 1, "cluster_manager.warming_clusters": 0}
"""Statistics of an Envoy that accepts connections, and has initialized each cluster, including DNS lookups."""
_SERVED: Final = "|".join(re.escape(name) for name in (*_VERSIONS, *_READY))
_TEXT: Final = re.compile('^([^ ]+): "(.*)"$', re.MULTILINE)
_NUMBER: Final = re.compile("^([^ ]+): ([0-9]+)$", re.MULTILINE)


class Administration:
    """Client of an Envoy's administration interface, as an asynchronous context manager.

    Each method raises OSError, aiohttp.ClientError or TimeoutError if Envoy does not answer within 5 s.
    """

    def __init__(self, socket: PurePosixPath) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket)), timeout=_TIMEOUT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def serves(self) -> Versions | None:
        """Return the versions of the files that Envoy uses; None if Envoy is not ready.

        A version is empty if Envoy has not loaded this file yet.
        """
        text = await self._get("/stats", filter=f"^({_SERVED})$")
        numbers = {name: int(value) for name, value in _NUMBER.findall(text)}
        if any(numbers.get(name) != value for name, value in _READY.items()):
            return None
        versions = dict(_TEXT.findall(text))
        return Versions(**{field: versions.get(name, "") for name, field in _VERSIONS.items()})

    async def numbers(self, pattern: str) -> Mapping[str, int]:
        """Return the counters and gauges whose names match the regular expression `pattern`.

        Statistics that Envoy has never updated are absent.
        """
        text = await self._get("/stats", filter=pattern, usedonly="")
        return {name: int(value) for name, value in _NUMBER.findall(text)}

    async def set_runtime(self, key: str, value: int) -> None:
        """Set a value of Envoy's runtime, which lasts until Envoy stops."""
        async with self._session.post("http://envoy/runtime_modify", params={key: str(value)}) as answer:
            answer.raise_for_status()

    async def _get(self, path: str, **query: str) -> str:
        async with self._session.get(f"http://envoy{path}", params=query) as answer:
            answer.raise_for_status()
            return await answer.text()
