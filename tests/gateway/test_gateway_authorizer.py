"""What the authorizer answers to Envoy."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hmac
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from kplane.api import SERVICE_ACCOUNT_ISSUER
from kplane.gateway.authorizer import Authorizer
from kplane.gateway.envoy.listener import AUTHORIZER_SECONDS
from kplane.gateway.envoy.replies import DECLINED
from kplane.gateway.errors import Declined
from kplane.gateway.routes import Hold, Route, Upstream
from kplane.gateway.tokens import BootstrapTokens, Issuer, TokenTrust
from kplane.gateway.waker import PATIENCE_SECONDS, Waker
from kplane.pki.primitives import create_authority, create_signing_key, issue_client
from kplane.pki.signatures import sign_claims

from .fleet import CLIENT_CA, TOKEN_KEY, route

PATH = "/clusters/a/control-plane/api"


def _certificate(user: str = "jane", groups: tuple[str, ...] = ()) -> dict[str, str]:
    pem = issue_client(CLIENT_CA, user=user, groups=groups).certificate.decode()
    return {"x-forwarded-client-cert": f'Hash=1;Chain="{quote(pem, safe="")}"'}


@pytest.fixture
async def ask(tmp_path: Path) -> AsyncIterator[Any]:
    """`await ask(path, headers, method="GET")` returns code, headers and text. `ask.serve` takes the routes,
    `ask.update` those that change, and `ask.woken` has who was asked to wake.
    """
    woken: list[str] = []

    async def request(route: Route, at: datetime) -> None:
        woken.append(route.key)

    waker = Waker(request)
    authorizer, socket = Authorizer(waker), tmp_path / "socket"
    socket.touch()  # as after a kill

    def serve(*routes: Route) -> None:
        """As if Envoy had confirmed them."""
        authorizer.serve(routes)
        waker.reach(route.key for route in routes)

    async with (
        authorizer.listening(socket),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as session,
    ):
        assert socket.stat().st_mode & 0o777 == 0o600

        async def send(path: str, headers: Any = (), method: str = "GET") -> Any:
            async with session.request(method, f"http://x{path}", headers=dict(headers)) as answer:
                return answer.status, answer.headers, await answer.text()

        send.serve, send.update = serve, authorizer.update  # type: ignore[attr-defined]
        send.authorizer = authorizer  # type: ignore[attr-defined]
        send.woken, send.waker = woken, waker  # type: ignore[attr-defined]
        yield send


async def test_authorizer_does_not_answer_404_while_routes_are_not_current(ask: Any) -> None:
    ask.serve(route("b"))
    ask.authorizer.is_current = lambda: False
    code, headers, text = await ask(PATH, _certificate())
    assert (code, headers["Retry-After"]) == (DECLINED, "1")
    assert "may not know this control plane yet" in text
    ask.authorizer.is_current = lambda: True
    assert (await ask(PATH, _certificate()))[0] == 401


async def test_user_groups_and_destination_come_in_one_answer(ask: Any) -> None:
    ask.serve(route("a"), route("b"))
    for method in ("GET", "POST", "PATCH", "DELETE"):
        code, headers, _ = await ask(PATH, _certificate(groups=("sales", "it")), method)
        assert code == 200
        assert headers["x-remote-user"] == "jane"
        assert {headers["x-kplane-group-0"], headers["x-kplane-group-1"]} == {"sales", "it"}
        assert "x-kplane-group-2" not in headers
        assert headers["x-kplane-upstream"] == f"uid-a/front-proxy{'-changes' if method != 'GET' else ''}"


async def test_it_says_no_as_an_api_server_does(ask: Any) -> None:
    tokens_only = dataclasses.replace(route("t").upstream, front_proxy=None)  # type: ignore[type-var]
    ask.serve(route("a"), Route(key="uid-t", cluster_path="t", upstream=tokens_only))
    for path, headers, expected in (
        ("/clusters/b/control-plane/api", _certificate(), 401),
        ("/api", _certificate(), 401),
        ("/clusters/A/control-plane/api", _certificate(), 401),
        (PATH, {"x-forwarded-client-cert": 'Hash=1;Chain="x"'}, 401),
        ("/clusters/t/control-plane/api", _certificate(), 401),
        (PATH, _certificate(groups=tuple(f"g{number}" for number in range(33))), 403),
    ):
        code, _, text = await ask(path, headers)
        assert (code, json.loads(text)["code"], json.loads(text)["kind"]) == (expected, expected, "Status")


async def test_it_calls_nothing_gone_before_it_knows_what_there_is(ask: Any) -> None:
    code, _, text = await ask(PATH, _certificate())
    assert (code, json.loads(text)["code"]) == (DECLINED, 503)


async def test_answer_has_no_retry_after_when_a_person_has_to_act(ask: Any) -> None:
    """client-go would repeat the request ten times, and show nothing meanwhile."""
    sleeping = route("a", asleep=NOW - timedelta(hours=1), requested=NOW - timedelta(minutes=30))
    assert sleeping.asleep is not None
    asleep = dataclasses.replace(sleeping.asleep, failed=True, problem="Secret x is damaged")
    ask.serve(dataclasses.replace(sleeping, asleep=asleep))
    code, headers, text = await ask(PATH, _certificate())
    assert (code, json.loads(text)["code"]) == (DECLINED, 503)
    assert "cannot wake: Secret x is damaged" in json.loads(text)["message"]
    assert "Retry-After" not in headers


async def test_a_successor_of_a_path_has_nothing_of_who_had_it_before(ask: Any) -> None:
    ask.serve(route("a", key="uid-2"))
    _, headers, _ = await ask(PATH, _certificate())
    assert headers["x-kplane-upstream"] == "uid-2/front-proxy"


async def test_what_changes_is_told_alone(ask: Any, eventually: Any) -> None:
    ask.serve(route("a", asleep=NOW), route("b"))
    request = asyncio.create_task(ask(PATH, _certificate()))
    await eventually(lambda: ask.woken, lambda woken: woken == ["uid-a"])
    ask.update({"a": route("a")})
    assert (await request)[0] == 200
    other = PATH.replace("/a/", "/b/")
    assert (await ask(other, _certificate()))[0] == 200
    # By host name, it is not served by its path any more, and connections to it may wait.
    upstream = Upstream.behind("https://127.0.0.1:6443")
    by_host = Route(key="uid-b", cluster_path="b", upstream=upstream, host="b.example.org")
    ask.update({"b": by_host})
    assert (await ask(other, _certificate()))[0] == 401
    assert await ask.waker.passage("uid-b") is by_host
    ask.update({"a": None, "b": None})
    assert (await ask(PATH, _certificate()))[0] == 401
    for key in ("uid-a", "uid-b"):
        with pytest.raises(Declined, match="no control plane"):
            await ask.waker.passage(key)


async def test_a_control_plane_that_changes_its_path_stays_known(ask: Any) -> None:
    ask.serve(route("b", key="uid-a"))
    for changed in ({"b": None, "a": route("a")}, {"b": route("b", key="uid-a"), "a": None}):
        ask.update(changed)
        assert (await ask.waker.passage("uid-a")).cluster_path in changed


async def test_long_chains_and_long_paths_are_read(ask: Any) -> None:
    ask.serve(route("a"))
    pem = b"".join(issue_client(CLIENT_CA, user="jane").certificate for _ in range(8)).decode()
    header = {"x-forwarded-client-cert": f'Hash=1;Chain="{quote(pem, safe="")}"'}
    code, _, _ = await ask(PATH + "?labelSelector=" + "x" * 20_000, header)
    assert code == 200


NOW = datetime.now(UTC)
STRANGER = issue_client(create_authority("client"), user="x").certificate.decode()


def _bearer(**claims: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {_token(**claims)}"}


def _token(*, key: bytes = TOKEN_KEY, **claims: Any) -> str:
    good = {
        "iss": SERVICE_ACCOUNT_ISSUER,
        "aud": [SERVICE_ACCOUNT_ISSUER],
        "exp": int((NOW + timedelta(hours=1)).timestamp()),
        "sub": "system:serviceaccount:default:robot",
        "kubernetes.io": {"namespace": "default", "serviceaccount": {"name": "robot", "uid": "1"}},
    }
    return sign_claims(good | claims, key=key)


async def test_a_request_to_one_that_sleeps_waits_and_goes_where_its_credential_counts(
    ask: Any, eventually: Any
) -> None:
    ask.serve(route("a", asleep=NOW), route("b", asleep=NOW))
    requests = [asyncio.create_task(ask(PATH, headers)) for headers in (_bearer(), _certificate())]
    await eventually(lambda: ask.woken, lambda woken: woken == ["uid-a"])
    assert not any(request.done() for request in requests)
    ask.serve(route("a"), route("b", asleep=NOW))
    (code, by_token, _), (again, by_certificate, _) = await asyncio.gather(*requests)
    assert (code, again) == (200, 200)
    assert by_token["x-kplane-upstream"] == "uid-a"
    assert "x-remote-user" not in by_token
    assert by_certificate["x-kplane-upstream"] == "uid-a/front-proxy"
    assert by_certificate["x-remote-user"] == "jane"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Basic YWRtaW46YWRtaW4="},
        {"Authorization": "Bearer"},
        {"Authorization": ""} | _certificate(),
        {"x-forwarded-client-cert": 'Hash=1;Chain="x"'},
        {"x-forwarded-client-cert": f'Hash=1;Chain="{quote(STRANGER, safe="")}"'},
        _bearer(key=create_signing_key()),
        _bearer(exp=int((NOW - timedelta(minutes=3)).timestamp())),
        _bearer(exp="never"),
        _bearer(iss="https://login.example.org"),
        {"Authorization": "Bearer x"},
        {"Authorization": f"Bearer {'x' * (64 << 10)}"},
        {"Sec-WebSocket-Protocol": "base64.binary.k8s.io"},
    ],
)
async def test_who_cannot_be_a_user_wakes_nothing(ask: Any, headers: dict[str, str]) -> None:
    ask.serve(route("a", asleep=NOW))
    code, _, text = await ask(PATH, headers)
    assert (code, json.loads(text)["reason"]) == (401, "Unauthorized")
    assert ask.woken == []


async def test_a_token_whose_issuer_does_not_answer_wakes_nothing(ask: Any) -> None:
    """A control plane that is held is awake: there the API server decides."""
    issuer = Issuer(url="https://127.0.0.1:1", audiences=frozenset({"kubernetes"}))
    routes = [route("a", asleep=NOW), dataclasses.replace(route("b"), held=Hold(until=NOW, asked="then"))]
    for found in routes:
        assert found.upstream is not None
        trusting = dataclasses.replace(found.upstream, trust=TokenTrust(issuers=(issuer,)))
        ask.update({found.cluster_path: dataclasses.replace(found, upstream=trusting)})
    ask.waker.reach(["uid-b"])
    claims = {"iss": issuer.url, "aud": "kubernetes"}
    code, _, text = await ask(PATH, _bearer(**claims))
    assert (code, json.loads(text)["code"]) == (DECLINED, 503)
    assert "issuer" in json.loads(text)["message"]
    assert (await ask(PATH.replace("/a/", "/b/"), _bearer(**claims)))[0] == 200
    assert (await ask(PATH, _bearer(**claims | {"aud": "other"})))[0] == 401
    assert ask.woken == []


async def test_a_browser_sends_its_token_as_a_protocol(ask: Any, eventually: Any) -> None:
    encoded = base64.urlsafe_b64encode(_token().encode()).decode().rstrip("=")
    protocols = f"base64.binary.k8s.io, base64url.bearer.authorization.k8s.io.{encoded}"
    ask.serve(route("a", asleep=NOW))
    request = asyncio.create_task(ask(PATH, {"Sec-WebSocket-Protocol": protocols}))
    await eventually(lambda: ask.woken, lambda woken: woken == ["uid-a"])
    ask.serve(route("a"))
    assert (await request)[0] == 200


def _with_trust(found: Route, **trust: Any) -> Route:
    assert found.upstream is not None
    changed = dataclasses.replace(found.upstream.trust, **trust)
    return dataclasses.replace(found, upstream=dataclasses.replace(found.upstream, trust=changed))


async def test_bootstrap_token_wakes_only_the_control_plane_that_knew_it(ask: Any, eventually: Any) -> None:
    salt, token = b"salt", "abcdef.0123456789abcdef"
    known = BootstrapTokens(salt=salt, expirations={hmac.digest(salt, token.encode(), "sha256"): None})
    ask.serve(_with_trust(route("a", asleep=NOW), bootstrap_tokens=known), route("b", asleep=NOW))
    for path, made_up in ((PATH, "abcdef.1123456789abcdef"), (PATH.replace("/a/", "/b/"), token)):
        code, _, text = await ask(path, {"Authorization": f"Bearer {made_up}"})
        assert (code, json.loads(text)["reason"]) == (401, "Unauthorized")
    assert ask.woken == []
    waiting = asyncio.create_task(ask(PATH, {"Authorization": f"Bearer {token}"}))
    await eventually(lambda: ask.woken, lambda woken: woken == ["uid-a"])
    ask.serve(route("a"), route("b", asleep=NOW))
    assert (await waiting)[0] == 200


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        (_bearer(), 204),
        (_bearer(key=create_signing_key()), 401),
        (_bearer(exp="never"), 401),
        ({"Authorization": "Bearer abcdef.0123456789abcdef"}, 401),
        ({}, 401),
    ],
)
async def test_question_about_token_is_answered_without_wake(ask: Any, headers: dict[str, str], code: int) -> None:
    ask.serve(route("a", asleep=NOW), route("b"))
    for name, expected in (("a", code), ("b", code), ("c", 401)):
        answer = await ask(PATH.replace("/a/", f"/{name}/"), headers | {"X-Kplane-Verify": "token"})
        assert answer[0] == expected
    assert ask.woken == []


async def test_request_with_unknown_token_counts_for_client_address(ask: Any) -> None:
    held = dataclasses.replace(route("b"), held=Hold(until=NOW, asked="then"))
    ask.serve(route("a"), held)
    for name, text, code in (("a", "x", 200), ("b", "x", 401), ("b", "abcdef.0123456789abcdef", 200)):
        answer = await ask(PATH.replace("/a/", f"/{name}/"), {"Authorization": f"Bearer {text}"})
        assert (answer[0], "x-kplane-tenant" in answer[1]) == (code, False)
        assert answer[1].get("x-kplane-unknown") == (f"uid-{name}" if code == 200 else None)
    _, headers, _ = await ask(PATH, _bearer())
    assert (headers["x-kplane-tenant"], "x-kplane-unknown" in headers) == ("uid-a", False)


async def test_paths_that_nobody_has_wake_nothing(ask: Any) -> None:
    ask.serve(route("a", asleep=NOW))
    for path in ("/clusters/b/control-plane/api", "/clusters/A/control-plane", "/api"):
        assert (await ask(path, _bearer()))[0] == 401
    assert ask.woken == []


async def test_a_client_that_goes_waits_no_more(ask: Any, eventually: Any) -> None:
    ask.serve(route("a", asleep=NOW))
    request = asyncio.create_task(ask(PATH, _bearer()))
    await eventually(lambda: ask.waker.waiting, lambda waiting: waiting == 1)
    request.cancel()
    await eventually(lambda: ask.waker.waiting, lambda waiting: waiting == 0)


def test_envoy_waits_longer_than_the_authorizer() -> None:
    assert AUTHORIZER_SECONDS > PATIENCE_SECONDS + 10
