"""Tokens of OIDC issuers. The gateway verifies tokens with the keys that their issuer publishes."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from kplane.gateway import issuers
from kplane.gateway.clients import Client
from kplane.gateway.issuers import IssuerKeys, KeysUnavailable
from kplane.gateway.tokens import Issuer, TokenTrust, issuer_of
from tests.tls_server import serve_over_tls

RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
NOW = datetime.now(UTC)


def _with_header(token: str, header: Any) -> str:
    return ".".join((base64.urlsafe_b64encode(json.dumps(header).encode()).decode().rstrip("="), *token.split(".")[1:]))


class Provider:
    """An OIDC issuer."""

    def __init__(self) -> None:
        self.issuer: Issuer
        self.url = ""
        self.keys: dict[str, Any] = {"rsa": RSA}
        self.discovery: dict[str, Any] = {}
        """Wrong entries of the discovery document."""
        self.fails = False
        self.padding = 0
        self.reads = 0

    async def discover(self, request: web.Request) -> web.Response:
        self.reads += 1
        if self.fails:
            raise web.HTTPServiceUnavailable
        document = {"issuer": self.issuer.url, "jwks_uri": f"{self.url}/keys"} | self.discovery
        return web.json_response(document)

    async def publish(self, request: web.Request) -> web.Response:
        algorithms = {"rsa": jwt.algorithms.RSAAlgorithm, "ec": jwt.algorithms.ECAlgorithm}
        keys = [
            json.loads(algorithms[name.partition("-")[0]].to_jwk(key.public_key())) | {"kid": name, "use": "sig"}
            for name, key in self.keys.items()
        ]
        secret = {"kty": "oct", "kid": "shared", "k": "c2VjcmV0" * 8}
        return web.json_response({"keys": [*keys, secret], "padding": "x" * self.padding})

    async def redirect(self, request: web.Request) -> web.Response:
        raise web.HTTPFound("/keys")

    def token(self, *, key: Any = RSA, kid: str | None = "rsa", algorithm: str = "RS256", **claims: Any) -> str:
        defaults = {
            "iss": self.issuer.url,
            "aud": "kubernetes",
            "sub": "ada",
            "exp": NOW + timedelta(hours=1),
            "org": "acme",
        }
        header = {"kid": kid} if kid is not None else {}
        return jwt.encode(defaults | claims, key, algorithm=algorithm, headers=header)


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[Provider]:
    provider, app = Provider(), web.Application()
    app.router.add_get("/realm/.well-known/openid-configuration", provider.discover)
    app.router.add_get("/keys", provider.publish)
    app.router.add_get("/elsewhere", provider.redirect)
    async with serve_over_tls(app, tmp_path) as server:
        assert server.ca_data is not None
        provider.url = server.server
        provider.issuer = Issuer(
            url=f"{server.server}/realm/",
            audiences=frozenset({"kubernetes"}),
            certificate_authority=server.ca_data.decode(),
            required_claims=(("org", "acme"),),
        )
        yield provider


@pytest.fixture
async def keys() -> AsyncIterator[IssuerKeys]:
    keys = IssuerKeys(clock=lambda: keys.now)  # type: ignore[attr-defined]
    keys.now = 100.0  # type: ignore[attr-defined]
    yield keys
    await keys.aclose()


async def test_issuer_keys_accept_token_signed_by_published_key(provider: Provider, keys: IssuerKeys) -> None:
    provider.keys = {"rsa": RSA, "ec": EC}
    tokens = [
        provider.token(),
        provider.token(algorithm="PS512"),
        provider.token(kid=None),
        provider.token(key=EC, kid="ec", algorithm="ES256"),
    ]
    assert [await keys.has_signed(provider.issuer, token) for token in tokens] == [True] * 4
    assert provider.reads == 1


async def test_issuer_keys_refuse_token_not_signed_by_published_key(provider: Provider, keys: IssuerKeys) -> None:
    other_key = rsa.generate_private_key(65537, 2048)
    tokens = [
        provider.token(key=other_key),
        provider.token(key=other_key, kid=None),
        provider.token(kid="unknown"),
        provider.token(key="c2VjcmV0" * 8, kid="shared", algorithm="HS256"),
        provider.token()[:-4] + "AAAA",
        jwt.encode({"iss": provider.issuer.url}, key="", algorithm="none"),
        *(_with_header(provider.token(), header) for header in ({"alg": []}, {"alg": "RS256", "kid": []}, {}, [])),
        "x",
        "..",
        "é.é.é",
    ]
    assert [await keys.has_signed(provider.issuer, token) for token in tokens] == [False] * len(tokens)


async def test_issuer_keys_are_read_again_once_for_unknown_key_id(provider: Provider, keys: IssuerKeys) -> None:
    assert await keys.has_signed(provider.issuer, provider.token())
    provider.keys["rsa-2"] = new_key = rsa.generate_private_key(65537, 2048)
    token = provider.token(key=new_key, kid="rsa-2")
    assert not await keys.has_signed(provider.issuer, token)
    keys.now += 11  # type: ignore[attr-defined]
    results = await asyncio.gather(*(keys.has_signed(provider.issuer, token) for _ in range(20)))
    assert (results, provider.reads) == ([True] * 20, 2)


async def test_issuer_keys_stay_valid_while_issuer_is_unavailable(provider: Provider, keys: IssuerKeys) -> None:
    assert await keys.has_signed(provider.issuer, provider.token())
    provider.fails = True
    keys.now += 7200  # type: ignore[attr-defined]
    assert await keys.has_signed(provider.issuer, provider.token())
    assert provider.reads == 2


async def test_issuer_keys_raise_unavailable_and_limit_reads(provider: Provider, keys: IssuerKeys) -> None:
    provider.fails = True
    for _ in range(5):
        with pytest.raises(KeysUnavailable, match="answered 503"):
            await keys.has_signed(provider.issuer, provider.token())
    assert provider.reads == 1
    provider.fails = False
    keys.now += 11  # type: ignore[attr-defined]
    assert await keys.has_signed(provider.issuer, provider.token())


async def test_issuer_keys_read_continues_when_caller_is_cancelled(provider: Provider, keys: IssuerKeys) -> None:
    call = asyncio.create_task(keys.has_signed(provider.issuer, provider.token()))
    await asyncio.sleep(0)
    call.cancel()
    assert await keys.has_signed(provider.issuer, provider.token())
    assert provider.reads == 1


async def test_issuer_keys_limit_waiting_requests(
    provider: Provider, keys: IssuerKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = asyncio.Event()

    async def read(issuer: Issuer) -> NoReturn:
        await answered.wait()
        raise OSError("no answer")

    monkeypatch.setattr(issuers, "_read_keys", read)

    def ask(address: str) -> asyncio.Task[bool]:
        return asyncio.create_task(keys.has_signed(provider.issuer, provider.token(), client=Client(address)))

    waiting = [ask("192.0.2.7") for _ in range(20)]
    await asyncio.sleep(0)
    with pytest.raises(KeysUnavailable, match="too many requests wait"):
        await ask("192.0.2.7")
    waiting += [ask(f"192.0.2.{100 + number}") for number in range(30)]
    await asyncio.sleep(0)
    with pytest.raises(KeysUnavailable, match="too many requests wait"):
        await ask("192.0.2.8")
    # A request that ends leaves its place.
    waiting.pop().cancel()
    await asyncio.sleep(0)
    waiting.append(ask("192.0.2.8"))
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting[:-2])
    answered.set()
    for task in waiting:
        with pytest.raises(KeysUnavailable, match="no answer"):
            await task


@pytest.mark.parametrize(
    ("discovery", "why"),
    [
        ({"issuer": "https://other.example.org"}, "another issuer"),
        ({"jwks_uri": "http://127.0.0.1/keys"}, "no https URL"),
        ({"jwks_uri": None}, "no https URL"),
        ({"jwks_uri": "elsewhere"}, "answered 302"),
        ({"jwks_uri": "keys", "padding": "x" * (1 << 20)}, "more than"),
    ],
)
async def test_issuer_keys_refuse_invalid_discovery_document(
    provider: Provider, keys: IssuerKeys, discovery: dict[str, Any], why: str
) -> None:
    if discovery.get("jwks_uri") in {"elsewhere", "keys"}:
        discovery = discovery | {"jwks_uri": f"{provider.url}/{discovery['jwks_uri']}"}
    provider.discovery = discovery
    with pytest.raises(KeysUnavailable, match=why):
        await keys.has_signed(provider.issuer, provider.token())


async def test_issuer_keys_refuse_more_than_64_keys(provider: Provider, keys: IssuerKeys) -> None:
    provider.keys = {f"rsa-{number}": RSA for number in range(65)}
    with pytest.raises(KeysUnavailable, match="may have 64"):
        await keys.has_signed(provider.issuer, provider.token(kid="rsa-1"))


async def test_issuer_keys_are_unavailable_without_ca_of_issuer(provider: Provider, keys: IssuerKeys) -> None:
    for authority in (None, "damaged"):
        issuer = Issuer(url=provider.issuer.url, audiences=provider.issuer.audiences, certificate_authority=authority)
        with pytest.raises(KeysUnavailable):
            await keys.has_signed(issuer, provider.token())
    assert provider.reads == 0


async def test_issuer_of_returns_none_for_unaccepted_claims(provider: Provider) -> None:
    trust = TokenTrust(issuers=(provider.issuer,))
    assert issuer_of(trust, provider.token(), now=NOW) == provider.issuer
    for claims in (
        {"iss": "https://other.example.org"},
        {"aud": "other"},
        {"exp": NOW - timedelta(minutes=3)},
        {"exp": None},
        {"nbf": NOW + timedelta(minutes=3)},
        {"org": "globex"},
    ):
        assert issuer_of(trust, provider.token(**claims), now=NOW) is None
    assert issuer_of(TokenTrust(), provider.token(), now=NOW) is None
    assert issuer_of(trust, "a" * (64 << 10), now=NOW) is None


async def test_token_trust_parses_issuers_of_operator(provider: Provider) -> None:
    document = {
        "issuers": [
            {
                "issuerURL": provider.issuer.url,
                "audiences": ["kubernetes"],
                "certificateAuthority": provider.issuer.certificate_authority,
                "requiredClaims": {"org": "acme"},
            }
        ]
    }
    assert TokenTrust.from_json(json.dumps(document).encode(), keys=()).issuers == (provider.issuer,)
