"""The service that Envoy asks about requests with a client certificate: who is it, and which API server is meant?"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Final

from aiohttp import web

from kplane.gateway.envoy.names import (
    CERTIFICATE_HEADER,
    CREDENTIAL_HEADER,
    GROUP_HEADERS,
    UPSTREAM_HEADER,
    USER_HEADER,
    by_certificate,
)
from kplane.gateway.envoy.replies import UNAVAILABLE, status
from kplane.gateway.envoy.routing import tenant_of
from kplane.gateway.identity import Identity, NotVerified, Verifier, chain_of
from kplane.gateway.routes import Route

__all__ = ["Authorizer"]

_HEADER_BYTES: Final = 96 << 10
"""As Envoy takes from clients: a chain of certificates is long."""

logger = logging.getLogger(__name__)


class Authorizer:
    """Answers for the routes that it was told last. It sees headers, and no body."""

    def __init__(self) -> None:
        self._routes: dict[str, Route] | None = None
        self._verifier = Verifier()

    def serve(self, routes: Iterable[Route]) -> None:
        """Answer for these routes from now on."""
        self._routes = {route.cluster_path: route for route in routes}

    @contextlib.asynccontextmanager
    async def listening(self, socket: Path) -> AsyncIterator[None]:
        """Listen on a Unix socket, which only this user may connect to."""
        server = web.Server(self._answer, access_log=None, max_field_size=_HEADER_BYTES, max_line_size=_HEADER_BYTES)
        runner = web.ServerRunner(server)
        await runner.setup()
        try:
            # What a killed controller left is in the way.
            socket.unlink(missing_ok=True)
            await web.UnixSite(runner, str(socket)).start()
            socket.chmod(0o600)
            yield
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._routes is None:
            # Not 404: a client would take its objects for gone.
            return _refusal(UNAVAILABLE, "the gateway does not know its control planes yet")
        path = tenant_of(request.raw_path)
        route = self._routes.get(path) if path is not None else None
        if route is None:
            return _refusal(404, "the gateway serves no control plane at this path")
        if route.upstream is None:
            return _refusal(UNAVAILABLE, route.why_absent or "this control plane has no API server now")
        if route.upstream.front_proxy is None:
            return _refusal(401, "this control plane takes no client certificates at the gateway")
        try:
            chain = chain_of(request.headers.get(CERTIFICATE_HEADER, ""))
            identity = self._verifier.verify(chain, authorities=route.upstream.front_proxy.client_ca)
        except NotVerified as error:
            logger.debug("a client certificate was refused for %s: %s", route.cluster_path, error)
            return _refusal(401, "Unauthorized")
        if len(identity.groups) > len(GROUP_HEADERS):
            return _refusal(403, f"the certificate names more than {len(GROUP_HEADERS)} groups")
        return web.Response(headers=_verified(identity, route=route))


def _verified(identity: Identity, *, route: Route) -> dict[str, str]:
    return {
        USER_HEADER: identity.user,
        CREDENTIAL_HEADER: identity.credential,
        UPSTREAM_HEADER: by_certificate(route.key),
        **dict(zip(GROUP_HEADERS, identity.groups, strict=False)),
    }


def _refusal(code: int, message: str) -> web.Response:
    return web.Response(status=code, body=json.dumps(status(code, message)).encode(), content_type="application/json")
