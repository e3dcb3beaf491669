"""What Envoy says of itself, on a private socket."""

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
_TEXT: Final = re.compile('^([^ ]+): "(.*)"$', re.MULTILINE)
_NUMBER: Final = re.compile("^([^ ]+): ([0-9]+)$", re.MULTILINE)


class Administration:
    """Asks one Envoy; an async context manager. Each call raises OSError, aiohttp.ClientError or TimeoutError if there
    is no answer.
    """

    def __init__(self, socket: PurePosixPath) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket)), timeout=_TIMEOUT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def versions(self) -> Versions:
        """Return the versions of the files that Envoy uses; empty where it uses none yet."""
        text = await self._get("/stats?type=TextReadouts&filter=version_text$")
        found = {name: value for name, value in _TEXT.findall(text) if name in _VERSIONS}
        return Versions(**{field: found.get(name, "") for name, field in _VERSIONS.items()})

    async def warming(self) -> int:
        """Return the number of clusters that Envoy knows and does not use yet: names of hosts are looked up first."""
        found = await self.numbers("^cluster_manager.warming_clusters$")
        return found.get("cluster_manager.warming_clusters", 0)

    async def live(self) -> bool:
        """Whether Envoy takes connections."""
        async with self._session.get("http://envoy/ready") as answer:
            return answer.status == 200

    async def numbers(self, pattern: str) -> Mapping[str, int]:
        """Return the counters and gauges whose names match."""
        text = await self._get(f"/stats?filter={pattern}&usedonly")
        return {name: int(value) for name, value in _NUMBER.findall(text)}

    async def _get(self, path: str) -> str:
        async with self._session.get(f"http://envoy{path}") as answer:
            answer.raise_for_status()
            return await answer.text()
