"""What can be a route, and what is refused before Envoy sees it."""

from __future__ import annotations

import dataclasses

import pytest

from kplane.gateway.errors import RouteInvalid
from kplane.gateway.routes import KeyPair, Route, Upstream
from kplane.pki.primitives import create_authority

from .fleet import route

CA = create_authority("a").certificate


@pytest.mark.parametrize("path", ["", "a/b", "..", "A", "a.b", "-a", "a-", "root", "clusters", "a" * 64, "a\n", "a?b"])
def test_what_is_no_cluster_path_is_refused(path: str) -> None:
    with pytest.raises(RouteInvalid):
        Route(key="uid", cluster_path=path, upstream=None)


@pytest.mark.parametrize("key", ["", "../x", "a/b", "a b", ".", "A", "a" * 64])
def test_a_key_is_a_name_of_a_directory(key: str) -> None:
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
def test_what_is_no_address_of_an_api_server_is_refused(url: str) -> None:
    with pytest.raises(RouteInvalid):
        Upstream.at(url, ca=CA)


def test_addresses_and_names_are_told_apart() -> None:
    assert Upstream.at("https://[::1]:6443", ca=CA).host == "::1"
    assert Upstream.at("https://[::1]:6443", ca=CA).is_address
    named = Upstream.at("https://Api.kplane-cp-a.svc/", ca=CA)
    assert (named.host, named.port, named.is_address) == ("api.kplane-cp-a.svc", 443, False)


def test_damaged_certificates_are_refused() -> None:
    good = route("a").upstream
    assert good is not None
    assert good.front_proxy is not None
    with pytest.raises(RouteInvalid, match="CA of the API server"):
        dataclasses.replace(good, ca=b"x").check()
    other = create_authority("b")
    for pair in (KeyPair(b"x", b"y"), KeyPair(good.front_proxy.certificate.certificate, other.key)):
        with pytest.raises(RouteInvalid, match="certificate of the gateway"):
            dataclasses.replace(good, front_proxy=dataclasses.replace(good.front_proxy, certificate=pair)).check()
    with pytest.raises(RouteInvalid, match="CA of users"):
        dataclasses.replace(good, front_proxy=dataclasses.replace(good.front_proxy, client_ca=b"x")).check()


def test_keys_are_not_shown() -> None:
    assert "PRIVATE" not in repr(route("a"))
