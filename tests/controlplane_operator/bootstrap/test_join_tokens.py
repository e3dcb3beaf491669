"""Bootstrap tokens of kubeadm join: signatures as in Kubernetes, expiry, renewal, and changes by a tenant."""

from __future__ import annotations

import base64
import datetime as dt
from typing import Any

import pytest

from kplane.controlplane_operator.addons.kubeadm_join import ClusterFacts, join_objects
from kplane.controlplane_operator.errors import BootstrapFailed
from kplane.pki.bootstrap_tokens import (
    JoinToken,
    current_tokens,
    detached_signature,
    new_token,
    read_token,
    token_secret,
)

NOW = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
FACTS = ClusterFacts("acme", "https://join.example:6443", b"CA", "v1.36.3", "10.96.0.0/16", "10.96.0.10")


def test_detached_signature_equals_test_vector_of_kubernetes() -> None:
    # k8s.io/cluster-bootstrap/token/jws/jws_test.go
    token = JoinToken("joshua", "my voice is my passcode", NOW)
    content = "Hello from the other side. I must have called a thousand times."
    expected = "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"
    assert detached_signature(content, token=token) == expected


def test_token_is_read_from_its_secret_and_hidden_in_repr() -> None:
    token = new_token(now=NOW)
    assert read_token(token_secret(token)) == token
    assert token.secret not in repr(token)
    assert len({new_token(now=NOW).secret for _ in range(50)}) == 50


def test_token_is_renewed_at_a_third_of_its_life_and_kept_to_its_end() -> None:
    first = new_token(now=NOW)
    assert current_tokens([], now=NOW)[0].expires_at == first.expires_at == NOW + 24 * HOUR
    assert current_tokens([first], now=NOW + 15 * HOUR) == [first]
    second, remaining = current_tokens([first], now=NOW + 17 * HOUR)
    assert remaining == first
    assert second.expires_at == NOW + 41 * HOUR
    assert current_tokens([first, second], now=NOW + 23 * HOUR) == [second, first]
    assert current_tokens([first, second], now=NOW + 25 * HOUR) == [second]


def test_token_with_extended_life_is_replaced() -> None:
    edited_token = JoinToken("abcdef", "0123456789abcdef", NOW + 1000 * HOUR)
    (replacement,) = current_tokens([edited_token], now=NOW)
    assert replacement.id != edited_token.id


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("token-id", "ABCDEF"),
        ("token-id", "other1"),
        ("token-secret", "short"),
        ("expiration", "tomorrow"),
        ("expiration", "2026-01-02T03:04:05"),
        ("expiration", None),
    ],
)
def test_read_token_returns_none_for_invalid_entry(name: str, value: str | None) -> None:
    secret = token_secret(JoinToken("abcdef", "0123456789abcdef", NOW))
    assert read_token(secret) is not None
    if value is None:
        del secret["data"][name]
    else:
        secret["data"][name] = base64.b64encode(value.encode()).decode()
    assert read_token(secret) is None


@pytest.mark.parametrize("broken", [{"type": "Opaque"}, {"data": None}, {"data": {"token-id": "%%%"}}])
def test_read_token_returns_none_for_invalid_type_or_data(broken: dict[str, Any]) -> None:
    assert read_token({**token_secret(new_token(now=NOW)), **broken}) is None


def test_join_objects_raises_if_ca_or_version_is_missing() -> None:
    with pytest.raises(BootstrapFailed, match="certificate-authority-data"):
        join_objects(ClusterFacts("a", "https://x", None, "v1.36.3", None, None), tokens=[])
    with pytest.raises(BootstrapFailed, match="version"):
        join_objects(ClusterFacts("a", "https://x", b"CA", "unknown", None, None), tokens=[])


def test_join_objects_omits_unknown_service_cidr_and_dns() -> None:
    full_objects = join_objects(FACTS, tokens=[])
    sparse_objects = join_objects(ClusterFacts("a", "https://[::1]/x", b"CA", "v1.29.2+k3s1", None, None), tokens=[])

    def text(objects: list[dict[str, Any]], name: str) -> str:
        (config_map,) = [obj for obj in objects if obj["kind"] == "ConfigMap" and obj["metadata"]["name"] == name]
        return "".join(config_map["data"].values())

    assert "serviceSubnet: 10.96.0.0/16" in text(full_objects, "kubeadm-config")
    assert "10.96.0.10" in text(full_objects, "kubelet-config")
    assert "serviceSubnet" not in text(sparse_objects, "kubeadm-config")
    assert "'[::1]:443'" in text(sparse_objects, "kubeadm-config")
    assert "clusterDNS" not in text(sparse_objects, "kubelet-config")
