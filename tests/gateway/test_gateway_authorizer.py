"""Responses of the authorizer to Envoy."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hmac
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import aiohttp
import pytest

from kplane.api import SERVICE_ACCOUNT_ISSUER
from kplane.gateway import issuers
from kplane.gateway.authorizer import Authorizer
from kplane.gateway.clients import Client
from kplane.gateway.envoy.listener import AUTHORIZER_SECONDS
from kplane.gateway.envoy.replies import DECLINED
from kplane.gateway.errors import Declined
from kplane.gateway.routes import Hold, Route, Upstream
from kplane.gateway.tokens import BootstrapTokens, Issuer, ServiceAccounts, TokenTrust, read_token_keys
from kplane.gateway.waker import PATIENCE_SECONDS, Waker
from kplane.pki.primitives import create_authority, create_signing_key, issue_client, public_key
from kplane.pki.signatures import sign_claims

from .fleet import CLIENT_CA, TOKEN_KEY, route

PATH = "/clusters/a/control-plane/api"


def _certificate(user: str = "jane", groups: tuple[str, ...] = ()) -> dict[str, str]:
    pem = issue_client(CLIENT_CA, user=user, groups=groups).certificate.decode()
    return {"x-forwarded-client-cert": f'Hash=1;Chain="{quote(pem, safe="")}"'}


@pytest.fixture
async def ask(tmp_path: Path) -> AsyncIterator[Any]:
    """`await ask(path, headers, method="GET")` returns code, headers and text. `ask.serve` sets the routes,
    `ask.update` changes routes, and `ask.woken` has the key of each wake-up request.
    """
    woken: list[str] = []

    async def request(route: Route, at: datetime) -> None:
        woken.append(route.key)

    waker = Waker(request)
    authorizer, socket = Authorizer(waker), tmp_path / "socket"
    socket.touch()  # left by a killed authorizer

    def serve(*routes: Route) -> None:
        """Set the routes, as if Envoy had confirmed them."""
        authorizer.serve(routes)
        waker.reach(route.key for route in routes)

    async with (
        authorizer.listening(socket),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket), limit=0)) as session,
    ):
        assert socket.stat().st_mode & 0o777 == 0o600

        async def send(path: str, headers: Any = (), method: str = "GET") -> Any:
            async with session.request(method, f"http://x{path}", headers=dict(headers)) as answer:
                return answer.status, answer.headers, await answer.text()

        send.serve, send.update = serve, authorizer.update  # type: ignore[attr-defined]
        send.authorizer = authorizer  # type: ignore[attr-defined]
        send.woken, send.waker = woken, waker  # type: ignore[attr-defined]
        yield send


async def test_authorizer_declines_unknown_path_while_routes_are_stale(ask: Any) -> None:
    ask.serve(route("b"))
    ask.authorizer.is_current = lambda: False
    code, headers, text = await ask(PATH, _certificate())
    assert (code, headers["Retry-After"]) == (DECLINED, "1")
    assert "may not know this control plane yet" in text
    ask.authorizer.is_current = lambda: True
    assert (await ask(PATH, _certificate()))[0] == 401


def _lagging(ask: Any, *changes: dict[str, Route | None], caught_up: bool = True) -> list[str]:
    """Make the replica learn these changes only while requests wait. Returns the addresses of waiting requests."""
    waited: list[str] = []

    async def catch_up(client: Client) -> bool:
        waited.append(client.address)
        for change in changes:
            ask.update(change)
        return caught_up

    ask.authorizer.catch_up = catch_up
    return waited


async def test_lagging_authorizer_serves_new_path_after_wait(ask: Any) -> None:
    ask.serve(route("b"))
    ask.waker.reach(["uid-a", "uid-b"])
    waited = _lagging(ask, {"a": route("a")})
    client = {"X-Forwarded-For": "192.0.2.7"}
    code, headers, _ = await ask(PATH, _bearer() | client)
    assert (code, headers["x-kplane-upstream"], waited) == (200, "uid-a", ["192.0.2.7"])
    ask.update({"a": None})
    assert (await ask(PATH, _certificate() | client))[0] == 200
    # A path that the gateway serves, and a request without a credential, do not wait.
    assert (await ask(PATH, _bearer()))[0] == 200
    ask.update({"a": None})
    for anonymous in ({}, {"Authorization": "Basic YWRtaW46YWRtaW4="}):
        assert (await ask(PATH, anonymous))[0] == 401
    assert len(waited) == 2


async def test_lagging_authorizer_verifies_by_new_control_plane_of_name(ask: Any) -> None:
    """A deleted control plane and its successor have other keys."""
    other_key = create_signing_key()
    former = _with_trust(route("a", key="uid-former", asleep=NOW), keys=read_token_keys(public_key(other_key)))
    ask.serve(former)
    ask.waker.reach(["uid-a"])
    waited = _lagging(ask, {"a": route("a")})
    assert (await ask(PATH, _bearer()))[1]["x-kplane-upstream"] == "uid-a"
    # The wait takes the same time whether a path is known or not, so it reveals no names.
    assert (await ask(PATH, _certificate() | {"Authorization": "Basic YWRtaW46YWRtaW4="}))[0] == 401
    ask.serve(route("a", asleep=NOW))
    _lagging(ask)
    assert (await ask(PATH, _bearer(key=other_key)))[0] == 401
    assert len(waited) == 1
    assert ask.woken == []


async def test_authorizer_declines_unknown_path_when_it_stays_behind(ask: Any) -> None:
    ask.serve(route("b", asleep=NOW))
    waited = _lagging(ask, caught_up=False)
    code, headers, text = await ask(PATH, _bearer())
    assert (code, headers["Retry-After"]) == (DECLINED, "1")
    assert "may not know this control plane yet" in text
    assert (await ask(PATH.replace("/a/", "/b/"), _bearer(key=create_signing_key())))[0] == 401
    assert len(waited) == 2


async def test_authorizer_returns_user_groups_and_upstream_in_headers(ask: Any) -> None:
    ask.serve(route("a"), route("b"))
    for method in ("GET", "POST", "PATCH", "DELETE"):
        code, headers, _ = await ask(PATH, _certificate(groups=("sales", "it")), method)
        assert code == 200
        assert headers["x-remote-user"] == "jane"
        assert {headers["x-kplane-group-0"], headers["x-kplane-group-1"]} == {"sales", "it"}
        assert "x-kplane-group-2" not in headers
        assert headers["x-kplane-upstream"] == f"uid-a/front-proxy{'-changes' if method != 'GET' else ''}"


async def test_authorizer_returns_kubernetes_status_for_refusals(ask: Any) -> None:
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


async def test_authorizer_returns_503_before_first_routes(ask: Any) -> None:
    code, _, text = await ask(PATH, _certificate())
    assert (code, json.loads(text)["code"]) == (DECLINED, 503)


async def test_authorizer_omits_retry_after_when_wake_has_failed(ask: Any) -> None:
    """client-go would retry ten times without output to its user."""
    sleeping_route = route("a", asleep=NOW - timedelta(hours=1), requested=NOW - timedelta(minutes=30))
    assert sleeping_route.asleep is not None
    sleep = dataclasses.replace(sleeping_route.asleep, failed=True, problem="Secret x is damaged")
    ask.serve(dataclasses.replace(sleeping_route, asleep=sleep))
    code, headers, text = await ask(PATH, _certificate())
    assert (code, json.loads(text)["code"]) == (DECLINED, 503)
    assert "cannot wake: Secret x is damaged" in json.loads(text)["message"]
    assert "Retry-After" not in headers


async def test_authorizer_selects_upstream_by_key_of_route(ask: Any) -> None:
    ask.serve(route("a", key="uid-2"))
    _, headers, _ = await ask(PATH, _certificate())
    assert headers["x-kplane-upstream"] == "uid-2/front-proxy"


async def test_authorizer_update_changes_named_routes_only(ask: Any, eventually: Any) -> None:
    ask.serve(route("a", asleep=NOW), route("b"))
    request = asyncio.create_task(ask(PATH, _certificate()))
    await eventually(lambda: ask.woken, lambda woken: woken == ["uid-a"])
    ask.update({"a": route("a")})
    assert (await request)[0] == 200
    other_path = PATH.replace("/a/", "/b/")
    assert (await ask(other_path, _certificate()))[0] == 200
    # A control plane with a host name is not served by path. Connections to its host name may wait.
    upstream = Upstream.behind("https://127.0.0.1:6443")
    host_route = Route(key="uid-b", cluster_path="b", upstream=upstream, host="b.example.org")
    ask.update({"b": host_route})
    assert (await ask(other_path, _certificate()))[0] == 401
    assert await ask.waker.passage("uid-b") is host_route
    ask.update({"a": None, "b": None})
    assert (await ask(PATH, _certificate()))[0] == 401
    for key in ("uid-a", "uid-b"):
        with pytest.raises(Declined, match="no control plane"):
            await ask.waker.passage(key)


async def test_authorizer_keeps_control_plane_when_its_path_changes(ask: Any) -> None:
    ask.serve(route("b", key="uid-a"))
    for changes in ({"b": None, "a": route("a")}, {"b": route("b", key="uid-a"), "a": None}):
        ask.update(changes)
        assert (await ask.waker.passage("uid-a")).cluster_path in changes


async def test_authorizer_accepts_long_chain_and_long_path(ask: Any) -> None:
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
    defaults = {
        "iss": SERVICE_ACCOUNT_ISSUER,
        "aud": [SERVICE_ACCOUNT_ISSUER],
        "exp": int((NOW + timedelta(hours=1)).timestamp()),
        "sub": "system:serviceaccount:default:robot",
        "kubernetes.io": {"namespace": "default", "serviceaccount": {"name": "robot", "uid": "1"}},
    }
    return sign_claims(defaults | claims, key=key)


async def test_authorizer_holds_request_then_routes_by_credential(ask: Any, eventually: Any) -> None:
    ask.serve(route("a", asleep=NOW), route("b", asleep=NOW))
    requests = [asyncio.create_task(ask(PATH, headers)) for headers in (_bearer(), _certificate())]
    await eventually(lambda: ask.woken, lambda woken: woken == ["uid-a"])
    assert not any(request.done() for request in requests)
    ask.serve(route("a"), route("b", asleep=NOW))
    (token_code, token_headers, _), (certificate_code, certificate_headers, _) = await asyncio.gather(*requests)
    assert (token_code, certificate_code) == (200, 200)
    assert token_headers["x-kplane-upstream"] == "uid-a"
    assert "x-remote-user" not in token_headers
    assert certificate_headers["x-kplane-upstream"] == "uid-a/front-proxy"
    assert certificate_headers["x-remote-user"] == "jane"


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
async def test_authorizer_returns_401_without_wake_for_invalid_credential(ask: Any, headers: dict[str, str]) -> None:
    ask.serve(route("a", asleep=NOW))
    code, _, text = await ask(PATH, headers)
    assert (code, json.loads(text)["reason"]) == (401, "Unauthorized")
    assert ask.woken == []


async def test_authorizer_wakes_no_control_plane_when_issuer_is_down(ask: Any) -> None:
    """A held control plane is awake, so its API server verifies the token."""
    issuer = Issuer(url="https://127.0.0.1:1", audiences=frozenset({"kubernetes"}))
    routes = [route("a", asleep=NOW), dataclasses.replace(route("b"), held=Hold(until=NOW, asked="then"))]
    for candidate in routes:
        assert candidate.upstream is not None
        upstream = dataclasses.replace(candidate.upstream, trust=TokenTrust(issuers=(issuer,)))
        ask.update({candidate.cluster_path: dataclasses.replace(candidate, upstream=upstream)})
    ask.waker.reach(["uid-b"])
    claims = {"iss": issuer.url, "aud": "kubernetes"}
    code, _, text = await ask(PATH, _bearer(**claims))
    assert (code, json.loads(text)["code"]) == (DECLINED, 503)
    assert "issuer" in json.loads(text)["message"]
    assert (await ask(PATH.replace("/a/", "/b/"), _bearer(**claims)))[0] == 200
    assert (await ask(PATH, _bearer(**claims | {"aud": "other"})))[0] == 401
    assert ask.woken == []


async def test_authorizer_answers_others_while_issuer_hangs(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The issuer signed no token of this flood: the tokens only name it."""

    async def read(issuer: Issuer) -> NoReturn:
        raise await asyncio.Future[OSError]()

    monkeypatch.setattr(issuers, "_read_keys", read)
    issuer = Issuer(url="https://login.example.org", audiences=frozenset({"kubernetes"}))
    ask.serve(_with_trust(route("a", asleep=NOW), issuers=(issuer,)), _with_trust(route("b"), issuers=(issuer,)))
    made_up = {"iss": issuer.url, "aud": "kubernetes"}

    async def flood(number: int, *, path: str = PATH, **headers: str) -> Any:
        return await ask(path, _bearer(**made_up) | {"X-Forwarded-For": f"192.0.2.{number}"} | headers)

    tasks = [asyncio.create_task(flood(number)) for number in range(51)]
    async with asyncio.timeout(60):
        (declined,), waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        code, _, text = await declined
        assert (code, "cannot read the keys" in text) == (DECLINED, True)
        other_path = PATH.replace("/a/", "/b/")
        assert (await ask(other_path, _certificate()))[0] == 200
        # The API server of an awake control plane verifies the token.
        assert (await flood(50, path=other_path))[1]["x-kplane-unknown"] == "uid-b"
        assert (await flood(50, path=other_path, **{"X-Kplane-Verify": "token"}))[0] == 401
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()
    assert ask.woken == []


async def test_authorizer_reads_token_of_websocket_protocol_header(ask: Any, eventually: Any) -> None:
    encoded = base64.urlsafe_b64encode(_token().encode()).decode().rstrip("=")
    protocols = f"base64.binary.k8s.io, base64url.bearer.authorization.k8s.io.{encoded}"
    ask.serve(route("a", asleep=NOW))
    request = asyncio.create_task(ask(PATH, {"Sec-WebSocket-Protocol": protocols}))
    await eventually(lambda: ask.woken, lambda woken: woken == ["uid-a"])
    ask.serve(route("a"))
    assert (await request)[0] == 200


def _with_trust(found: Route, **trust: Any) -> Route:
    assert found.upstream is not None
    new_trust = dataclasses.replace(found.upstream.trust, **trust)
    return dataclasses.replace(found, upstream=dataclasses.replace(found.upstream, trust=new_trust))


async def test_bootstrap_token_wakes_only_control_plane_that_knows_it(ask: Any, eventually: Any) -> None:
    salt, token = b"salt", "abcdef.0123456789abcdef"
    bootstrap_tokens = BootstrapTokens(salt=salt, expirations={hmac.digest(salt, token.encode(), "sha256"): None})
    ask.serve(_with_trust(route("a", asleep=NOW), bootstrap_tokens=bootstrap_tokens), route("b", asleep=NOW))
    for path, wrong_token in ((PATH, "abcdef.1123456789abcdef"), (PATH.replace("/a/", "/b/"), token)):
        code, _, text = await ask(path, {"Authorization": f"Bearer {wrong_token}"})
        assert (code, json.loads(text)["reason"]) == (401, "Unauthorized")
    assert ask.woken == []
    request = asyncio.create_task(ask(PATH, {"Authorization": f"Bearer {token}"}))
    await eventually(lambda: ask.woken, lambda woken: woken == ["uid-a"])
    ask.serve(route("a"), route("b", asleep=NOW))
    assert (await request)[0] == 200


async def test_token_of_deleted_service_account_wakes_no_control_plane(ask: Any) -> None:
    accounts = ServiceAccounts(salt=b"salt", digests=frozenset())
    ask.serve(_with_trust(route("a", asleep=NOW), accounts=accounts))
    code, _, text = await ask(PATH, _bearer())
    assert (code, json.loads(text)["reason"]) == (401, "Unauthorized")
    assert ask.woken == []
    # A running API server may have newer accounts than the record of the last sleep.
    ask.serve(_with_trust(route("a"), accounts=accounts))
    code, headers, _ = await ask(PATH, _bearer())
    assert (code, headers["x-kplane-tenant"]) == (200, "uid-a")


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
async def test_authorizer_verifies_token_without_wake(ask: Any, headers: dict[str, str], code: int) -> None:
    ask.serve(route("a", asleep=NOW), route("b"))
    for name, expected in (("a", code), ("b", code), ("c", 401)):
        answer = await ask(PATH.replace("/a/", f"/{name}/"), headers | {"X-Kplane-Verify": "token"})
        assert answer[0] == expected
    assert ask.woken == []


async def test_authorizer_sets_unknown_header_for_unverified_token(ask: Any) -> None:
    held_route = dataclasses.replace(route("b"), held=Hold(until=NOW, asked="then"))
    ask.serve(route("a"), held_route)
    for name, text, code in (("a", "x", 200), ("b", "x", 401), ("b", "abcdef.0123456789abcdef", 200)):
        answer = await ask(PATH.replace("/a/", f"/{name}/"), {"Authorization": f"Bearer {text}"})
        assert (answer[0], "x-kplane-tenant" in answer[1]) == (code, False)
        assert answer[1].get("x-kplane-unknown") == (f"uid-{name}" if code == 200 else None)
    _, headers, _ = await ask(PATH, _bearer())
    assert (headers["x-kplane-tenant"], "x-kplane-unknown" in headers) == ("uid-a", False)


async def test_authorizer_keeps_slots_of_hold_from_made_up_tokens(ask: Any, eventually: Any) -> None:
    hold = Hold(until=NOW + timedelta(minutes=10), asked="then")
    ask.serve(dataclasses.replace(route("a"), held=hold))
    stranger = {"Authorization": "Bearer abcdef.0123456789abcdef", "X-Forwarded-For": "192.0.2.7, 127.0.0.1"}
    flood = [asyncio.create_task(ask(PATH, stranger, "POST")) for _ in range(20)]
    await eventually(lambda: ask.waker.waiting, lambda waiting: waiting == 20)
    code, _, text = await ask(PATH, stranger, "POST")
    assert (code, "without a verified credential" in text) == (429, True)
    user = _certificate() | {"X-Forwarded-For": "192.0.2.7, 127.0.0.1"}
    writes = [asyncio.create_task(ask(PATH, headers, "POST")) for headers in (user, _bearer() | user)]
    await eventually(lambda: ask.waker.waiting, lambda waiting: waiting == 22)
    ask.update({"a": route("a")})
    assert [answer[0] for answer in await asyncio.gather(*flood, *writes)] == [200] * 22


async def test_authorizer_names_absent_api_server_to_verified_clients(ask: Any) -> None:
    """The gateway verifies credentials by the last API server that the control plane had."""
    absent_route = Route(key="uid-a", cluster_path="a", upstream=None, why_absent="its phase is Failed")
    stranger = {"x-forwarded-client-cert": f'Hash=1;Chain="{quote(STRANGER, safe="")}"'}
    strangers = (stranger, {"Authorization": "Bearer x"}, _bearer(key=create_signing_key()))

    async def codes(*clients: dict[str, str]) -> set[int]:
        return {(await ask(PATH, headers, method))[0] for headers in clients for method in ("GET", "POST")}

    ask.serve(absent_route)
    assert await codes(_certificate(), _bearer(), *strangers) == {401}
    ask.serve(route("a"))
    ask.update({"a": absent_route})
    code, _, text = await ask(PATH, _bearer())
    assert (code, json.loads(text)["message"]) == (DECLINED, "its phase is Failed")
    for change in (ask.serve, lambda again: ask.update({"a": dataclasses.replace(again, why_absent="later")})):
        change(absent_route)
        assert await codes(_certificate(), _bearer()) == {DECLINED}
        assert await codes(*strangers) == {401}
    ask.update({"a": None})
    ask.update({"a": absent_route})
    assert await codes(_certificate(), _bearer(), *strangers) == {401}


async def test_authorizer_returns_429_beyond_100_wakes_of_address(ask: Any, eventually: Any) -> None:
    names = [f"s{number}" for number in range(101)]
    ask.serve(route("a"), *(route(name, asleep=NOW) for name in names))
    client = _certificate() | {"X-Forwarded-For": "192.0.2.7"}
    paths = [PATH.replace("/a/", f"/{name}/") for name in names]
    waking = [asyncio.create_task(ask(path, client)) for path in paths[:100]]
    await eventually(lambda: len(ask.woken), lambda woken: woken == 100)
    code, headers, text = await ask(paths[100], client)
    assert (code, headers["Retry-After"]) == (429, "1")
    assert "woken too many control planes" in text
    assert len(ask.woken) == 100
    assert (await ask(PATH, client))[0] == 200
    # Other addresses, and requests to control planes that wake up already, are unaffected.
    waking.append(asyncio.create_task(ask(paths[0], client)))
    other_client = _certificate() | {"X-Forwarded-For": "192.0.2.8"}
    waking.append(asyncio.create_task(ask(paths[100], other_client)))
    await eventually(lambda: len(ask.woken), lambda woken: woken == 101)
    ask.serve(*map(route, names))
    assert {answer[0] for answer in await asyncio.gather(*waking)} == {200}


async def test_authorizer_returns_401_for_unknown_path_without_wake(ask: Any) -> None:
    ask.serve(route("a", asleep=NOW))
    for path in ("/clusters/b/control-plane/api", "/clusters/A/control-plane", "/api"):
        assert (await ask(path, _bearer()))[0] == 401
    assert ask.woken == []


async def test_authorizer_stops_waiting_when_client_disconnects(ask: Any, eventually: Any) -> None:
    ask.serve(route("a", asleep=NOW))
    request = asyncio.create_task(ask(PATH, _bearer()))
    await eventually(lambda: ask.waker.waiting, lambda waiting: waiting == 1)
    request.cancel()
    await eventually(lambda: ask.waker.waiting, lambda waiting: waiting == 0)


def test_authorizer_timeout_exceeds_waker_patience_by_10_seconds() -> None:
    assert AUTHORIZER_SECONDS > PATIENCE_SECONDS + 10
