"""Bearer tokens that wake a control plane: tokens that its API server will accept, as far as the gateway knows."""

from __future__ import annotations

import base64
import dataclasses
import hmac
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from kplane.api import SERVICE_ACCOUNT_ISSUER
from kplane.gateway.errors import RouteInvalid
from kplane.gateway.tokens import (
    MAX_TOKEN_LENGTH,
    BootstrapTokens,
    ServiceAccounts,
    TokenTrust,
    accepts,
    bearer_token,
    read_token_keys,
)
from kplane.pki.issuing import sign_token
from kplane.pki.primitives import create_signing_key, public_key
from kplane.pki.signatures import sign_claims

KEY, FORMER = create_signing_key(), create_signing_key()
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
RSA = rsa.generate_private_key(65537, 2048).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
TRUST = TokenTrust(keys=(public_key(KEY), public_key(FORMER)))
GOOD = {
    "iss": SERVICE_ACCOUNT_ISSUER,
    "aud": [SERVICE_ACCOUNT_ISSUER],
    "sub": "system:serviceaccount:default:robot",
    "kubernetes.io": {"namespace": "default", "serviceaccount": {"name": "robot", "uid": "1"}},
}
IN_A_SECRET = {
    "iss": "kubernetes/serviceaccount",
    "sub": "system:serviceaccount:default:robot",
    "kubernetes.io/serviceaccount/namespace": "default",
    "kubernetes.io/serviceaccount/secret.name": "robot-token",
    "kubernetes.io/serviceaccount/service-account.name": "robot",
    "kubernetes.io/serviceaccount/service-account.uid": "1",
}


def _at(seconds: float) -> float:
    return (NOW + timedelta(seconds=seconds)).timestamp()


def _token(*, key: bytes = KEY, **claims: Any) -> str:
    return sign_claims(GOOD | {"exp": _at(600)} | claims, key=key)


def _encoded(part: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def _with_header(**header: Any) -> str:
    return ".".join((_encoded(header), *_token().split(".")[1:]))


@pytest.mark.parametrize(
    "token",
    [
        _token(),
        _token(key=FORMER),
        _token(exp=_at(-60)),
        _token(nbf=_at(60), iat=_at(60)),
        _token(aud=["other", SERVICE_ACCOUNT_ISSUER]),
        _token(aud=SERVICE_ACCOUNT_ISSUER),
        sign_claims(GOOD, key=KEY),
        sign_claims(IN_A_SECRET, key=KEY),
    ],
    ids=["present", "former key", "just ended", "clock", "audiences", "audience", "no end", "in a Secret"],
)
def test_accepts_is_true_for_token_valid_at_api_server(token: str) -> None:
    assert accepts(TRUST, token, now=NOW)


def test_accepts_is_true_for_token_signed_by_operator() -> None:
    """The operator signs credentials of its own users without an API server."""
    lifetime = timedelta(hours=1)
    credential = sign_token(KEY, namespace="kube-system", service_account="admin", uid="1", lifetime=lifetime)
    assert credential.token is not None
    assert accepts(TRUST, credential.token, now=datetime.now(UTC))


@pytest.mark.parametrize(
    "token",
    [
        _token(key=create_signing_key()),
        _token(exp=_at(-121)),
        _token(exp="never"),
        _token(exp=True),
        _token(nbf=_at(121)),
        _token(iat=_at(121)),
        _token(iat="now"),
        _token(aud=["other"]),
        _token(aud={"any": "audience"}),
        _token(iss="https://login.example.org"),
        _token(iss=[SERVICE_ACCOUNT_ISSUER]),
        _token(aud=[{}]),
        _token(sub=[]),
        _with_header(alg=["ES256"]),
        _token(sub="system:serviceaccount:default:other"),
        _token(**{"kubernetes.io": {"namespace": "default"}}),
        _token(**{"kubernetes.io": {"namespace": "default", "serviceaccount": {"name": "robot", "uid": ""}}}),
        sign_claims(IN_A_SECRET | {"sub": "admin"}, key=KEY),
        _with_header(alg="none"),
        _with_header(alg="HS256"),
        _with_header(),
        _token()[:-4] + "AAAA",
        _token().rpartition(".")[0] + ".",
        _token().rpartition(".")[0] + ".!",
        # aiohttp decodes invalid UTF-8 to such a character.
        "\udcff" + _token(),
        "x",
        "opaque",
        "a.b.c",
        "..",
        "é.é.é",
        "abcdef.0123456789abcde",
        "ABCDEF.0123456789abcdef",
        "abcdef.0123456789abcdef\n",
        ".".join((_encoded({"alg": "ES256"}), _encoded([SERVICE_ACCOUNT_ISSUER]), "x")),
        ".".join((_encoded({"alg": "ES256"}), base64.urlsafe_b64encode(b"[" * 20_000).decode(), "x")),
        "a" * (64 << 10),
        _token(padding="x" * MAX_TOKEN_LENGTH),
    ],
)
def test_accepts_is_false_for_token_invalid_at_api_server(token: str) -> None:
    assert not accepts(TRUST, token, now=NOW)


def _bootstrap(*tokens: tuple[str, float | None]) -> bytes:
    salt = bytes(16)
    entries = [
        {"hmac": hmac.digest(salt, token.encode(), "sha256").hex()}
        | ({"expiration": datetime.fromtimestamp(ends, UTC).isoformat()} if ends is not None else {})
        for token, ends in tokens
    ]
    return json.dumps({"salt": salt.hex(), "tokens": entries}).encode()


def test_accepts_is_true_for_bootstrap_token_until_expiration() -> None:
    lasting, current, former = (f"abcde{n}.0123456789abcdef" for n in range(3))
    bootstrap_tokens = BootstrapTokens.from_json(_bootstrap((lasting, None), (current, _at(1)), (former, _at(0))))
    trust = dataclasses.replace(TRUST, bootstrap_tokens=bootstrap_tokens)
    assert [accepts(trust, token, now=NOW) for token in (lasting, current, former)] == [True, True, False]
    assert not accepts(trust, "abcde0.0123456789abcdeg", now=NOW)
    assert not accepts(TRUST, lasting, now=NOW)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"salt":"x","tokens":[]}',
        b'{"salt":"00","tokens":[{}]}',
        b'{"salt":"00","tokens":[{"hmac":"00","expiration":"2026-11-23T12:00:00"}]}',
    ],
)
def test_bootstrap_tokens_refuse_damaged_json(text: bytes) -> None:
    with pytest.raises(RouteInvalid):
        BootstrapTokens.from_json(text)


def _accounts(*accounts: str) -> ServiceAccounts:
    salt = bytes(16)
    digests = [hmac.digest(salt, account.encode(), "sha256")[:16].hex() for account in accounts]
    return ServiceAccounts.from_json(json.dumps({"salt": salt.hex(), "accounts": digests}).encode())


def test_accepts_is_false_for_token_of_deleted_service_account() -> None:
    trust = dataclasses.replace(TRUST, accounts=_accounts("default/robot/1"))
    created_again = {"kubernetes.io": {"namespace": "default", "serviceaccount": {"name": "robot", "uid": "2"}}}
    in_a_secret_again = IN_A_SECRET | {"kubernetes.io/serviceaccount/service-account.uid": "2"}
    assert accepts(trust, _token(), now=NOW)
    assert accepts(trust, sign_claims(IN_A_SECRET, key=KEY), now=NOW)
    for token in (_token(**created_again), sign_claims(in_a_secret_again, key=KEY), _token(key=create_signing_key())):
        assert not accepts(trust, token, now=NOW)
    assert not accepts(dataclasses.replace(TRUST, accounts=_accounts()), _token(), now=NOW)
    # Without a record, each account counts.
    assert accepts(TRUST, _token(**created_again), now=NOW)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"salt":"x","accounts":[]}', b'{"salt":"00","accounts":[1]}', b'{"accounts":["00"]}']
)
def test_service_accounts_refuse_damaged_json(text: bytes) -> None:
    with pytest.raises(RouteInvalid):
        ServiceAccounts.from_json(text)


def test_accepts_uses_audiences_of_class() -> None:
    trust = TokenTrust.from_json(b'{"audiences": ["vault"]}', keys=TRUST.keys)
    assert accepts(trust, _token(aud=["vault"]), now=NOW)
    assert not accepts(trust, _token(), now=NOW)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"audiences": "vault"}',
        b'{"audiences": [1]}',
        b'{"issuers": [{}]}',
        b'{"issuers": {"issuerURL": 1}}',
        b'{"issuers": [{"issuerURL": "https://x", "audiences": [1]}]}',
    ],
)
def test_token_trust_refuses_damaged_json(text: bytes) -> None:
    with pytest.raises(RouteInvalid, match="authentication of the control plane"):
        TokenTrust.from_json(text, keys=())


def test_read_token_keys_ignores_rsa_keys(caplog: pytest.LogCaptureFixture) -> None:
    assert read_token_keys(public_key(KEY) + RSA) == (public_key(KEY).strip(),)
    assert "ECDSA P-256 only" in caplog.text
    trust = TokenTrust(keys=read_token_keys(RSA))
    assert not accepts(trust, _token(), now=NOW)


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
def test_bearer_token_is_read_from_header_or_websocket_protocol(
    authorization: str, protocols: str, token: str | None
) -> None:
    assert bearer_token(authorization, protocols=protocols) == token
