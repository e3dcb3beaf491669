"""What the authorizer answers to Envoy."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from kplane.controlplane_operator.pki.primitives import issue_client
from kplane.gateway.authorizer import Authorizer
from kplane.gateway.routes import Route

from .fleet import CLIENT_CA, route

PATH = "/clusters/a/control-plane/api"


def _certificate(user: str = "jane", groups: tuple[str, ...] = ()) -> dict[str, str]:
    pem = issue_client(CLIENT_CA, user=user, groups=groups).certificate.decode()
    return {"x-forwarded-client-cert": f'Hash=1;Chain="{quote(pem, safe="")}"'}


@pytest.fixture
async def ask(tmp_path: Path) -> AsyncIterator[Any]:
    """`await ask(path, headers, method="GET")` returns code, headers and text; `ask.authorizer` is the service."""
    authorizer, socket = Authorizer(), tmp_path / "socket"
    socket.touch()  # as after a kill
    async with (
        authorizer.listening(socket),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as session,
    ):
        assert socket.stat().st_mode & 0o777 == 0o600

        async def send(path: str, headers: Any = (), method: str = "GET") -> Any:
            async with session.request(method, f"http://x{path}", headers=dict(headers)) as answer:
                return answer.status, answer.headers, await answer.text()

        send.authorizer = authorizer  # type: ignore[attr-defined]
        yield send


async def test_user_groups_and_destination_come_in_one_answer(ask: Any) -> None:
    ask.authorizer.serve([route("a"), route("b")])
    for method in ("GET", "POST", "PATCH", "DELETE"):
        code, headers, _ = await ask(PATH, _certificate(groups=("sales", "it")), method)
        assert code == 200
        assert headers["x-remote-user"] == "jane"
        assert {headers["x-kplane-group-0"], headers["x-kplane-group-1"]} == {"sales", "it"}
        assert "x-kplane-group-2" not in headers
        assert headers["x-kplane-upstream"] == "uid-a/front-proxy"


async def test_it_says_no_as_an_api_server_does(ask: Any) -> None:
    tokens_only = dataclasses.replace(route("t").upstream, front_proxy=None)  # type: ignore[type-var]
    ask.authorizer.serve([route("a"), Route(key="uid-t", cluster_path="t", upstream=tokens_only)])
    for path, headers, expected in (
        ("/clusters/b/control-plane/api", _certificate(), 404),
        ("/api", _certificate(), 404),
        ("/clusters/A/control-plane/api", _certificate(), 404),
        (PATH, {}, 401),
        (PATH, {"x-forwarded-client-cert": 'Hash=1;Chain="x"'}, 401),
        ("/clusters/t/control-plane/api", _certificate(), 401),
        (PATH, _certificate(groups=tuple(f"g{number}" for number in range(33))), 403),
    ):
        code, _, text = await ask(path, headers)
        assert (code, json.loads(text)["code"], json.loads(text)["kind"]) == (expected, expected, "Status")


async def test_it_calls_nothing_gone_before_it_knows_what_there_is(ask: Any) -> None:
    assert (await ask(PATH, _certificate()))[0] == 503


async def test_a_successor_of_a_path_has_nothing_of_who_had_it_before(ask: Any) -> None:
    ask.authorizer.serve([route("a", key="uid-2")])
    _, headers, _ = await ask(PATH, _certificate())
    assert headers["x-kplane-upstream"] == "uid-2/front-proxy"


async def test_long_chains_and_long_paths_are_read(ask: Any) -> None:
    ask.authorizer.serve([route("a")])
    pem = b"".join(issue_client(CLIENT_CA, user="jane").certificate for _ in range(8)).decode()
    header = {"x-forwarded-client-cert": f'Hash=1;Chain="{quote(pem, safe="")}"'}
    code, _, _ = await ask(PATH + "?labelSelector=" + "x" * 20_000, header)
    assert code == 200
