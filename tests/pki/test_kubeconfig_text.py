"""Kubeconfigs are written and read with a template if the result equals that of YAML."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from kplane.pki.kubeconfig import document_of, render_kubeconfig
from kplane.pki.primitives import KeyPair
from kplane.provider import ClusterConfig

_SERVERS = st.sampled_from(
    [
        "https://127.0.0.1:6443",
        "https://acme.example.com/clusters/acme/control-plane",
        "https://[::1]:6443",
        "https://a.example.com/#",
        "https://a.example.com: x",
    ]
)
_TOKENS = st.text(min_size=1) | st.from_regex(r"eyJ[A-Za-z0-9_-]{20,60}\.[A-Za-z0-9_-]{20,60}", fullmatch=True)


@given(server=_SERVERS, ca=st.none() | st.binary(min_size=1), token=_TOKENS)
@example(server="https://a", ca=None, token="null")
@example(server="https://a", ca=None, token="1234567890123456789012345")
@example(server="https://a", ca=b"x" * 60, token="a: b\n    token: c")
def test_rendered_kubeconfig_holds_its_arguments_as_yaml(server: str, ca: bytes | None, token: str) -> None:
    text = render_kubeconfig(server=server, ca=ca, token=token)
    read = yaml.safe_load(text)
    assert read["clusters"][0]["cluster"]["server"] == server
    assert read["users"] == [{"name": "admin", "user": {"token": token}}]
    assert ("certificate-authority-data" in read["clusters"][0]["cluster"]) is (ca is not None)
    document = document_of(text)
    assert document == (read if isinstance(document, Mapping) else text)


def test_kubeconfig_of_operator_is_read_without_yaml_parser() -> None:
    pair = KeyPair(b"-----BEGIN CERTIFICATE-----" * 9, b"-----BEGIN PRIVATE KEY-----" * 9)
    for text in (
        render_kubeconfig(server="https://a.example:6443", ca=pair.certificate, token="eyJ" + "a" * 90),
        render_kubeconfig(server="https://a.example:6443", ca=None, user="controllers", client=pair),
    ):
        assert document_of(text) == yaml.safe_load(text)


def test_rendered_kubeconfig_names_the_host_for_tls() -> None:
    name = "acme.localhost"
    text = render_kubeconfig(server="https://127.0.0.1:8443", ca=None, token="eyJ" + "a" * 90, tls_server_name=name)
    assert ClusterConfig.from_kubeconfig(document_of(text)).tls_server_name == name


def test_rendered_kubeconfig_names_the_proxy() -> None:
    text = render_kubeconfig(server="https://a.example:6443", ca=None, token="eyJ" + "a" * 90, proxy="http://p:3128")
    assert ClusterConfig.from_kubeconfig(document_of(text)).proxy == "http://p:3128"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"server: https://a", b"server: https://b # https://a"),
        (b"current-context: controlplane\n", b"current-context: controlplane\n---\n"),
        (b"    user: admin\n", b"    user: other\n"),
        (b"  user:\n", b"  user:\n    exec: {command: rm}\n"),
    ],
)
def test_edited_kubeconfig_is_left_to_the_yaml_parser(old: bytes, new: bytes) -> None:
    text = render_kubeconfig(server="https://a.example:6443", ca=None, token="eyJ" + "a" * 90)
    assert old in text
    edited = text.replace(old, new)
    assert document_of(edited) is edited
