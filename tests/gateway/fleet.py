"""Routes of control planes that do not exist."""

from __future__ import annotations

import dataclasses
import hmac
from datetime import datetime
from functools import cache
from typing import NoReturn

from kplane.gateway import routes
from kplane.gateway.envoy.listener import Serving
from kplane.gateway.routes import FrontProxy, Route, Sleep, Upstream
from kplane.gateway.tokens import BootstrapTokens, TokenTrust, read_token_keys
from kplane.gateway.waker import Waker
from kplane.pki.primitives import KeyPair, create_authority, create_signing_key, issue_client, issue_serving, public_key

__all__ = ["CLIENT_CA", "SERVING_CA", "TOKEN_KEY", "no_waker", "route", "serving"]

SERVING_CA = create_authority("serving")
_FRONT_PROXY_CA = create_authority("front-proxy")
CLIENT_CA = create_authority("client")
TOKEN_KEY = create_signing_key()


@cache
def _front_proxy() -> FrontProxy:
    return FrontProxy(
        certificate=_pair(issue_client(_FRONT_PROXY_CA, user="front-proxy-client")), client_ca=CLIENT_CA.certificate
    )


def route(
    name: str,
    *,
    port: int = 6443,
    host: str = "127.0.0.1",
    key: str | None = None,
    asleep: datetime | None = None,
    requested: datetime | None = None,
) -> Route:
    """Return the route of a control plane. `asleep` is the time since which a control plane sleeps."""
    url, trust = f"https://{host}:{port}", TokenTrust(keys=read_token_keys(public_key(TOKEN_KEY)))
    upstream = Upstream.at(url, ca=SERVING_CA.certificate, front_proxy=_front_proxy(), trust=trust)
    sleep = Sleep(name=name, since=asleep, requested=requested) if asleep is not None else None
    return Route(key=key or f"uid-{name}", cluster_path=name, upstream=upstream, asleep=sleep)


def with_bootstrap_token(found: Route, token: str) -> Route:
    """Return the route with a bootstrap token that never expires."""
    assert found.upstream is not None
    bootstrap_tokens = BootstrapTokens(salt=b"", expirations={hmac.digest(b"", token.encode(), "sha256"): None})
    trust = dataclasses.replace(found.upstream.trust, bootstrap_tokens=bootstrap_tokens)
    return dataclasses.replace(found, upstream=dataclasses.replace(found.upstream, trust=trust))


def no_waker() -> Waker:
    """Return a waker that fails on each wake-up request, for control planes that are awake."""

    async def request(route: Route, at: datetime) -> NoReturn:
        raise AssertionError(f"{route.key} was to wake")

    return Waker(request)


@cache
def serving() -> Serving:
    pair = issue_serving(create_authority("gateway"), common_name="gateway", hosts=["localhost"])
    return Serving(host="127.0.0.1", port=8443, certificate=_pair(pair))


def _pair(pair: KeyPair) -> routes.KeyPair:
    return routes.KeyPair(pair.certificate, pair.key)
