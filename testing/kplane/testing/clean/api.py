"""Sends raw requests to the API server, and reads its discovery."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

__all__ = ["Api", "Discovery"]

_DISCOVERY: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_NAMES_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

Discovery = Mapping[str, frozenset[str]]
"""Resources by group and version in the discovery, for example `apps/v1` or `v1`."""


class Api:
    """Sends requests with the administrator's certificate. An async context manager.

    Methods raise OSError and aiohttp.ClientError if there is no answer.
    """

    def __init__(self, server: str, *, tls: ssl.SSLContext) -> None:
        """Take the URL and the TLS context with the certificate."""
        self._server = server
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=32)
        self._session = aiohttp.ClientSession(self._server, connector=connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def create(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Create an object; `?dryRun=All` in the path creates none."""
        return await self._request("POST", path, body=body, accept="application/json")

    async def revision(self, path: str) -> int:
        """List a resource from the up-to-date watch cache, and return its resource version; 0 if it fails."""
        status, answer = await self._request("GET", path, accept=_NAMES_ONLY)
        return int(answer["metadata"]["resourceVersion"]) if status == 200 else 0

    async def discovery(self) -> tuple[Discovery, Mapping[str, str]]:
        """Return the discovery, and the path of each resource that can be listed, by its name or group/name."""
        announced: dict[str, frozenset[str]] = {}
        paths: dict[str, str] = {}
        for root in ("/api", "/apis"):
            _, answer = await self._request("GET", root, accept=_DISCOVERY)
            for group in answer["items"]:
                name = group["metadata"].get("name", "")
                for version in group["versions"]:
                    resources = version.get("resources") or ()
                    served = f"{name}/{version['version']}" if name else version["version"]
                    announced[served] = frozenset(resource["resource"] for resource in resources)
                    for resource in resources:
                        if "list" in resource["verbs"]:
                            paths.setdefault(resource["resource"], f"{root}/{served}/{resource['resource']}")
                            paths.setdefault(
                                f"{name}/{resource['resource']}", f"{root}/{served}/{resource['resource']}"
                            )
        return announced, paths

    async def _request(
        self, method: str, path: str, *, accept: str, body: Mapping[str, Any] | None = None
    ) -> tuple[int, Any]:
        if self._session is None:
            raise OSError("failed to send a request: the client of the API server is closed")
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": accept, "Content-Type": "application/json"}
        async with self._session.request(method, path, data=data, headers=headers) as response:
            text = await response.read()
            return response.status, json.loads(text) if text.startswith(b"{") else text.decode(errors="replace")
