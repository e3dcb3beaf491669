"""Validation of routes before Envoy gets them."""

from __future__ import annotations

import dataclasses

import pytest

from kplane.gateway.errors import RouteInvalid
from kplane.gateway.routes import KeyPair, Route, Upstream
from kplane.pki.primitives import create_authority

from .fleet import route

CA = create_authority("a").certificate


@pytest.mark.parametrize("path", ["", "a/b", "..", "A", "a.b", "-a", "a-", "root", "clusters", "a" * 64, "a\n", "a?b"])
def test_route_refuses_invalid_cluster_path(path: str) -> None:
    with pytest.raises(RouteInvalid):
        Route(key="uid", cluster_path=path, upstream=None)


@pytest.mark.parametrize("key", ["", "../x", "a/b", "a b", ".", "A", "a" * 64])
def test_route_refuses_key_that_is_no_directory_name(key: str) -> None:
    with pytest.raises(RouteInvalid):
        Route(key=key, cluster_path="a", upstream=None)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:6443",
        "https://",
        "https://a b",
        "https://127.0.0.1:6443/clusters/x/control-plane",
        "https://user@127.0.0.1",
        "https://127.0.0.1:6443?x",
        "https://127.0.0.1:99999",
        "https://*.example.com",
        "https://exa_mple",
    ],
)
def test_upstream_refuses_invalid_api_server_url(url: str) -> None:
    with pytest.raises(RouteInvalid):
        Upstream.at(url, ca=CA)


def test_upstream_distinguishes_addresses_from_host_names() -> None:
    assert Upstream.at("https://[::1]:6443", ca=CA).host == "::1"
    assert Upstream.at("https://[::1]:6443", ca=CA).is_address
    upstream = Upstream.at("https://Api.kplane-cp-a.svc/", ca=CA)
    assert (upstream.host, upstream.port, upstream.is_address) == ("api.kplane-cp-a.svc", 443, False)


def test_upstream_check_refuses_damaged_certificates() -> None:
    upstream = route("a").upstream
    assert upstream is not None
    assert upstream.front_proxy is not None
    with pytest.raises(RouteInvalid, match="CA of the API server"):
        dataclasses.replace(upstream, ca=b"x").check()
    other_ca = create_authority("b")
    for pair in (KeyPair(b"x", b"y"), KeyPair(upstream.front_proxy.certificate.certificate, other_ca.key)):
        with pytest.raises(RouteInvalid, match="certificate of the gateway"):
            dataclasses.replace(
                upstream, front_proxy=dataclasses.replace(upstream.front_proxy, certificate=pair)
            ).check()
    with pytest.raises(RouteInvalid, match="CA of users"):
        dataclasses.replace(upstream, front_proxy=dataclasses.replace(upstream.front_proxy, client_ca=b"x")).check()


def test_route_repr_hides_private_keys() -> None:
    assert "PRIVATE" not in repr(route("a"))
