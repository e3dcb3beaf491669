"""What the gateway can tell of a bearer token: which ones no API server will take."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from kplane.api import SERVICE_ACCOUNT_ISSUER
from kplane.controlplane_operator.pki.primitives import create_signing_key, public_key
from kplane.controlplane_operator.pki.signatures import sign_claims
from kplane.gateway.tokens import bearer_token, is_worthless

KEY, FORMER = create_signing_key(), create_signing_key()
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
RSA = rsa.generate_private_key(65537, 2048).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _token(*, key: bytes = KEY, ends: float = 600, **claims: Any) -> str:
    given = {"iss": SERVICE_ACCOUNT_ISSUER, "exp": (NOW + timedelta(seconds=ends)).timestamp()}
    return sign_claims(given | claims, key=key)


def _encoded(part: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def _worthless(token: str, *keys: bytes) -> bool:
    return is_worthless(token, keys=keys or (public_key(KEY), public_key(FORMER)), now=NOW)


@pytest.mark.parametrize("key", [KEY, FORMER], ids=["present", "former"])
def test_one_by_any_trusted_key_is_worth_a_wake(key: bytes) -> None:
    assert not _worthless(_token(key=key))


@pytest.mark.parametrize(
    "token",
    [
        _token(key=create_signing_key()),
        _token(ends=-121),
        _token()[:-4] + "AAAA",
        _token().rpartition(".")[0] + ".",
        _token().rpartition(".")[0] + ".!",
        # As aiohttp gives bytes that are no UTF-8.
        "\udcff" + _token(),
        ".".join((_encoded({"alg": "none"}), _encoded({"iss": SERVICE_ACCOUNT_ISSUER}), "")),
    ],
    ids=["stranger", "ended", "signature", "no signature", "no base64", "no UTF-8", "no algorithm"],
)
def test_one_that_no_key_signed_or_that_has_ended_is_not(token: str) -> None:
    assert _worthless(token)


@pytest.mark.parametrize(
    "token",
    [
        "abcdef.0123456789abcdef",
        "opaque",
        "a.b.c",
        "..",
        "é.é.é",
        _token(key=create_signing_key(), iss="https://login.example.org", ends=-1000),
        ".".join((_encoded({}), _encoded([SERVICE_ACCOUNT_ISSUER]), "x")),
        ".".join((_encoded({}), base64.urlsafe_b64encode(b"[" * 50_000).decode(), "x")),
        # API servers allow for a minute.
        _token(ends=-60),
    ],
    ids=["bootstrap", "opaque", "three parts", "empty", "no ASCII", "issuer", "no object", "deep", "just ended"],
)
def test_of_others_only_the_api_server_can_tell(token: str) -> None:
    assert not _worthless(token)


def test_without_a_key_of_the_operators_kind_it_cannot_be_told() -> None:
    stranger = _token(key=create_signing_key())
    assert not is_worthless(stranger, keys=(), now=NOW)
    assert not _worthless(stranger, public_key(KEY), RSA)
    assert _worthless(_token(ends=-121), RSA)


@pytest.mark.parametrize(
    ("authorization", "protocols", "token"),
    [
        ("Bearer abc", "", "abc"),
        ("  bearer abc", "", "abc"),
        ("Bearer abc def", "", "abc"),
        ("Bearer  abc", "", None),
        ("Bearer ", "", None),
        ("Basic abc", "", None),
        ("", "", None),
        ("", "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.YWJj", "abc"),
        ("", "base64url.bearer.authorization.k8s.io.", None),
        ("", "base64url.bearer.authorization.k8s.io.%", None),
    ],
)
def test_a_token_is_where_api_servers_look_for_it(authorization: str, protocols: str, token: str | None) -> None:
    assert bearer_token(authorization, protocols=protocols) == token
