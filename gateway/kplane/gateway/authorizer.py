"""Authorizer: answers Envoy's questions about the user of a request, and the API server that gets the request.

A request to a sleeping control plane also waits here until the API server runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from aiohttp import web

from kplane.gateway.clients import Client
from kplane.gateway.envoy.bodies import BodyLimit
from kplane.gateway.envoy.names import (
    BACKLOG,
    BODY_HEADER,
    CERTIFICATE_HEADER,
    CLIENT_HEADER,
    CREDENTIAL_HEADER,
    FULL_HEADER,
    GROUP_HEADERS,
    LIMITED_BY_HEADER,
    PROTOCOL_HEADER,
    TENANT_HEADER,
    UNKNOWN_HEADER,
    UPSTREAM_HEADER,
    USER_HEADER,
    VERIFY_HEADER,
    by_certificate,
    by_token,
)
from kplane.gateway.envoy.replies import DECLINED, RETRY_SECONDS, UNAVAILABLE, body_of
from kplane.gateway.envoy.requests import changes
from kplane.gateway.envoy.routing import tenant_of
from kplane.gateway.errors import Declined
from kplane.gateway.identity import NotVerified, Verifier, chain_of
from kplane.gateway.issuers import IssuerKeys, KeysUnavailable
from kplane.gateway.routes import Route, Upstream
from kplane.gateway.tokens import TokenTrust, accepts, bearer_token, is_bootstrap_token, issuer_of
from kplane.gateway.waker import Waker

__all__ = ["Authorizer"]

_HEADER_BYTES: Final = 96 << 10
"""Maximum size of headers in bytes, as in Envoy's listener: certificate chains are long."""
_ENDING_SECONDS: Final = 5.0
_AUTHORIZATION: Final = "authorization"
_VERIFIED: Final = 204
_NOT_VERIFIED: Final = 401
_RETRIED: Final = (429, UNAVAILABLE)

logger = logging.getLogger(__name__)


class Authorizer:
    """Authorizes requests by the current routes. The authorizer sees headers, but no bodies."""

    def __init__(self, waker: Waker, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """`waker` holds requests to sleeping control planes."""
        self._waker = waker
        self._clock = clock
        self._routes: dict[str, Route] | None = None
        self._last_upstreams: dict[str, Upstream] = {}
        """Last API servers of control planes without an API server, by key. They verify credentials."""
        self._verifier = Verifier()
        self._issuers = IssuerKeys()
        self.is_current: Callable[[], bool] = lambda: True
        """Callback that returns whether this replica follows the management cluster. If not, an unknown path may be
        new.
        """
        self.catch_up: Callable[[Client], Awaitable[bool]] = _caught_up
        """Callback that waits until the routes are as new as those of other replicas. Returns False if they may not be.
        """

    def serve(self, routes: Iterable[Route]) -> None:
        """Replace all routes."""
        routes = list(routes)
        former = {route.key: self._last_upstream(route) for route in (self._routes or {}).values()}
        absent = [route.key for route in routes if route.upstream is None]
        self._last_upstreams = {key: last for key in absent if (last := former.get(key)) is not None}
        self._routes = {route.cluster_path: route for route in routes}
        self._waker.know(self._routes.values())

    def update(self, changed: Mapping[str, Route | None]) -> None:
        """Update changed routes, by path. None removes a route; all other routes stay."""
        routes = self._routes if self._routes is not None else {}
        keys: dict[str, Route | None] = {}
        for path, route in changed.items():
            former = routes.pop(path, None)
            if former is not None:
                keys.setdefault(former.key, None)
                if (last := self._last_upstream(former)) is not None:
                    self._last_upstreams[former.key] = last
            if route is not None:
                routes[path] = keys[route.key] = route
        for key, current in keys.items():
            if current is None or current.upstream is not None:
                self._last_upstreams.pop(key, None)
        self._routes = routes
        self._waker.learn(keys)

    @contextlib.asynccontextmanager
    async def listening(self, socket: Path) -> AsyncIterator[None]:
        """Listen on the Unix socket `socket` while the context is open. Only this user may connect to it."""
        server = web.Server(
            self._answer,
            access_log=None,
            max_field_size=_HEADER_BYTES,
            max_line_size=_HEADER_BYTES,
            # Cancel the wait of a client that disconnects.
            handler_cancellation=True,
        )
        runner = web.ServerRunner(server, shutdown_timeout=_ENDING_SECONDS)
        await runner.setup()
        try:
            # A killed controller leaves its socket behind.
            socket.unlink(missing_ok=True)
            await web.UnixSite(runner, str(socket), backlog=BACKLOG).start()
            socket.chmod(0o600)
            yield
        finally:
            await self._waker.aclose()
            await self._issuers.aclose()
            await runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if VERIFY_HEADER in request.headers:
            return web.Response(status=_VERIFIED if await self._is_verified(request) else _NOT_VERIFIED)
        try:
            change = changes(request.method, request.raw_path)
            route, headers = await self._admitted(request, change=change)
            verified = UNKNOWN_HEADER not in headers
            await self._waker.passage(route.key, change=change, client=_client_of(request), verified=verified)
        except Declined as declined:
            return _refusal(declined)
        return web.Response(headers=headers | self._limits(route))

    async def _is_verified(self, request: web.BaseRequest) -> bool:
        """Return whether the gateway verifies the token of a request, as an answer to the filter of
        `credentials.py`.
        """
        route, token = self._known(request), _token_of(request)
        if route is None or route.upstream is None or route.host or token is None:
            return False
        try:
            return await self._verifies(token, trust=_trust_of(route, route.upstream), client=_client_of(request))
        except KeysUnavailable:
            # Only the API server can verify this token.
            return False

    async def _admitted(self, request: web.BaseRequest, *, change: bool) -> tuple[Route, dict[str, str]]:
        """Return the route of a request, and the headers of `_identified`.

        Before a refusal with 401, the request waits until the routes are as new as those of other replicas. So a client
        may use an address as soon as it is published. Refusals for known and for unknown paths take the same time: a
        client without a valid credential must not learn which names exist. Raises Declined.
        """
        former = self._known(request)
        try:
            route = self._route_of(request)
            return route, await self._identified(request, route=route, change=change)
        except Declined as declined:
            if declined.code != _NOT_VERIFIED or not _has_credential(request):
                raise
            is_current = await self.catch_up(_client_of(request))
            if former is not None and self._known(request) == former:
                raise
        route = self._route_of(request, is_current=is_current)
        return route, await self._identified(request, route=route, change=change)

    def _known(self, request: web.BaseRequest) -> Route | None:
        path = tenant_of(request.raw_path)
        return (self._routes or {}).get(path) if path is not None else None

    def _route_of(self, request: web.BaseRequest, *, is_current: bool = True) -> Route:
        """Return the route of a request. `is_current` is False if the routes may lack new control planes."""
        if self._routes is None:
            # Not 404: clients such as controllers would take the objects of the control plane for deleted.
            raise Declined(UNAVAILABLE, "the gateway does not know its control planes yet")
        route = self._known(request)
        if route is None and not (is_current and self.is_current()):
            # Not 404 either: the control plane may be new. The client retries, since a long wait here would give memory
            # to clients without a verified credential.
            raise Declined(UNAVAILABLE, "the gateway may not know this control plane yet; retry")
        if route is None or route.host:
            # Not 404: a client without a valid credential must not learn which names exist.
            raise Declined(401, "Unauthorized")
        return route

    async def _identified(self, request: web.BaseRequest, *, route: Route, change: bool) -> dict[str, str]:
        """Return the headers that name the user and the cluster of the API server.

        Raises Declined if the credential does not entitle the request to wake the API server, or to learn that there
        is none.
        """
        upstream = self._last_upstream(route)
        if upstream is None:
            # Not 503: a client without a verified credential must not learn which names exist.
            raise Declined(401, "Unauthorized")
        if CERTIFICATE_HEADER in request.headers and _AUTHORIZATION not in request.headers:
            identity_headers = self._verified(request.headers[CERTIFICATE_HEADER], route=route, upstream=upstream)
            return {**identity_headers, UPSTREAM_HEADER: by_certificate(route.key, change=change)}
        is_good = await self._check_token(request, route=route, trust=_trust_of(route, upstream))
        counts_for = TENANT_HEADER if is_good else UNKNOWN_HEADER
        return {counts_for: route.key, UPSTREAM_HEADER: by_token(route.key, change=change)}

    def _last_upstream(self, route: Route) -> Upstream | None:
        """Return the API server of a control plane, or the last one that it had; None if the gateway knows none."""
        return route.upstream or self._last_upstreams.get(route.key)

    def _verified(self, certificate: str, *, route: Route, upstream: Upstream) -> dict[str, str]:
        if upstream.front_proxy is None:
            raise Declined(401, "Unauthorized")
        try:
            identity = self._verifier.verify(chain_of(certificate), authorities=upstream.front_proxy.client_ca)
        except NotVerified as error:
            logger.debug("a client certificate was refused for %s: %s", route.cluster_path, error)
            raise Declined(401, "Unauthorized") from error
        if len(identity.groups) > len(GROUP_HEADERS):
            raise Declined(403, f"the certificate names more than {len(GROUP_HEADERS)} groups")
        return {
            TENANT_HEADER: route.key,
            USER_HEADER: identity.user,
            CREDENTIAL_HEADER: identity.credential,
            **dict(zip(GROUP_HEADERS, identity.groups, strict=False)),
        }

    def _limits(self, route: Route) -> dict[str, str]:
        """Return the headers with the current limits, which may have changed while the request waited."""
        current = (self._routes or {}).get(route.cluster_path)
        if current is not None and current.key == route.key:
            route = current
        limits = route.limits
        return {
            LIMITED_BY_HEADER: limits.set_by,
            BODY_HEADER: str(BodyLimit.of(route)),
            **({FULL_HEADER: "true"} if route.full else {}),
        }

    async def _check_token(self, request: web.BaseRequest, *, route: Route, trust: TokenTrust) -> bool:
        """Return whether the gateway verifies the token of a request.

        Raises Declined if the request must neither wake the control plane nor wait. A request with an unverified token
        counts for its client address, and goes to a running API server. During a write hold, such a request waits only
        with a bootstrap token: the gateway does not know tokens that are newer than the last sleep.
        """
        token, runs = _token_of(request), route.upstream is not None and route.asleep is None
        if token is None:
            raise Declined(401, "Unauthorized")
        try:
            if await self._verifies(token, trust=trust, client=_client_of(request)):
                return True
        except KeysUnavailable as error:
            if route.asleep is not None:
                logger.warning("a request does not wake %s: %s", route.cluster_path, error)
                raise Declined(UNAVAILABLE, "the gateway cannot read the keys of this token's issuer; retry") from error
            if runs:
                return False
        if not runs or (route.held is not None and not is_bootstrap_token(token)):
            raise Declined(401, "Unauthorized")
        return False

    async def _verifies(self, token: str, *, trust: TokenTrust, client: Client) -> bool:
        """Return whether the gateway verifies a token.

        `client` sent the token. Raises KeysUnavailable if the keys of its issuer are missing, or if too many requests
        wait for them.
        """
        now = self._clock()
        if accepts(trust, token, now=now):
            return True
        issuer = issuer_of(trust, token, now=now)
        return issuer is not None and await self._issuers.has_signed(issuer, token, client=client)


def _trust_of(route: Route, upstream: Upstream) -> TokenTrust:
    """Return the tokens that the API server accepts. A running API server may have newer ServiceAccounts."""
    trust = upstream.trust
    if route.asleep is None and trust.accounts is not None:
        return dataclasses.replace(trust, accounts=None)
    return trust


async def _caught_up(_: Client) -> bool:
    return True


def _client_of(request: web.BaseRequest) -> Client:
    """Return the client of a request."""
    # Envoy appends its own address to the address of the client.
    return Client.at(request.headers.get(CLIENT_HEADER, "").partition(",")[0].strip())


def _has_credential(request: web.BaseRequest) -> bool:
    """Return whether a request has a token or a certificate of any issuer."""
    if _token_of(request) is not None:
        return True
    return CERTIFICATE_HEADER in request.headers and _AUTHORIZATION not in request.headers


def _token_of(request: web.BaseRequest) -> str | None:
    authorization = request.headers.get(_AUTHORIZATION, "")
    return bearer_token(authorization, protocols=request.headers.get(PROTOCOL_HEADER, ""))


def _refusal(declined: Declined) -> web.Response:
    body = body_of(declined.code, str(declined)).encode()
    headers = {"Retry-After": RETRY_SECONDS} if declined.code in _RETRIED and declined.is_retried else {}
    code = DECLINED if declined.code == UNAVAILABLE else declined.code
    return web.Response(status=code, body=body, headers=headers, content_type="application/json")
