"""Routes as of control planes, without any."""

from __future__ import annotations

from functools import cache

from kplane.controlplane_operator.pki.primitives import KeyPair, create_authority, issue_client, issue_serving
from kplane.gateway import routes
from kplane.gateway.envoy.listener import Serving
from kplane.gateway.routes import FrontProxy, Route, Upstream

__all__ = ["CLIENT_CA", "route", "serving"]

_SERVING_CA = create_authority("serving")
_FRONT_PROXY_CA = create_authority("front-proxy")
CLIENT_CA = create_authority("client")


@cache
def _front_proxy() -> FrontProxy:
    return FrontProxy(
        certificate=_pair(issue_client(_FRONT_PROXY_CA, user="front-proxy-client")), client_ca=CLIENT_CA.certificate
    )


def route(name: str, *, port: int = 6443, host: str = "127.0.0.1", key: str | None = None) -> Route:
    url = f"https://{host}:{port}"
    upstream = Upstream.at(url, ca=_SERVING_CA.certificate, front_proxy=_front_proxy())
    return Route(key=key or f"uid-{name}", cluster_path=name, upstream=upstream)


@cache
def serving() -> Serving:
    pair = issue_serving(create_authority("gateway"), common_name="gateway", hosts=["localhost"])
    return Serving(host="127.0.0.1", port=8443, certificate=_pair(pair))


def _pair(pair: KeyPair) -> routes.KeyPair:
    return routes.KeyPair(pair.certificate, pair.key)
