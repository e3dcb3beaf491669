"""What an API server gets of a request: nothing that a client says of who it is."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kplane.controlplane_operator.pki.primitives import KeyPair, create_authority, issue_client, issue_serving
from kplane.gateway import routes
from kplane.gateway.data_plane import DataPlane
from kplane.gateway.envoy.listener import Serving
from kplane.gateway.envoy.readiness import ANSWER_HEADER
from kplane.gateway.program import EnvoyValidator
from kplane.gateway.routes import FrontProxy, Route, Upstream
from kplane.workloads import ProcessRuntime

from .attacker import exchange, http1
from .fleet import no_waker

pytestmark = pytest.mark.integration

Ask = Callable[..., Awaitable[dict[str, Any]]]

CLAIMS = (
    "X-Remote-User: admin",
    "X-Remote-Group: system:masters",
    "X-Remote-Uid: 1",
    "X-Remote-Extra-Scopes: all",
    "X_Remote_User: admin",
    "X-Forwarded-For: 198.51.100.7",
    "X-Forwarded-Client-Cert: Hash=1",
    "X-Kplane-Upstream: uid-one/front-proxy",
    "X-Kplane-Group-3: system:masters",
    "X-Envoy-Original-Path: /x",
    "Connection: X-Remote-User, X-Remote-Group",
)


_REFUSALS = 3
"""More than Envoy tries in a row, so that one try is at the waiting room."""


def _pair(pair: KeyPair) -> routes.KeyPair:
    return routes.KeyPair(pair.certificate, pair.key)


def _file(path: Path, pair: KeyPair) -> Path:
    path.write_bytes(pair.certificate + pair.key)
    return path


@pytest.fixture
async def ask(envoy: Path, tmp_path: Path, hold_port: Callable[[], int]) -> AsyncIterator[Ask]:
    """Send a request through a gateway to a server that answers with what it got; by token, or as jane."""
    authority, clients, proxies = (create_authority(name) for name in ("serving", "clients", "proxies"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=proxies.certificate.decode())
    server = _file(tmp_path / "server.pem", issue_serving(authority, common_name="x", hosts=["127.0.0.1"]))
    context.load_cert_chain(server)
    context.verify_mode = ssl.CERT_OPTIONAL

    refused = list[str]()

    async def echo(request: web.BaseRequest) -> web.Response:
        if request.raw_path.startswith("/ending") and refused.count(request.raw_path) < _REFUSALS:
            refused.append(request.raw_path)
            told = {"Retry-After": "1", "X-Content-Type-Options": "nosniff"}
            return web.Response(status=503, headers=told, body=b'{"kind":"Status"}', content_type="application/json")
        if request.raw_path == "/unavailable":
            return web.json_response({"path": request.raw_path}, status=503)
        transport = request.transport
        peer = transport.get_extra_info("peercert") if transport is not None else None
        headers = [(name.lower(), value) for name, value in request.headers.items()]
        return web.json_response({"path": request.raw_path, "headers": headers, "peer": bool(peer)})

    runner = web.ServerRunner(web.Server(echo))
    await runner.setup()
    port = hold_port()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context, reuse_address=True).start()
    front_proxy = FrontProxy(
        certificate=_pair(issue_client(proxies, user="front-proxy-client")), client_ca=clients.certificate
    )
    upstream = Upstream.at(f"https://127.0.0.1:{port}", ca=authority.certificate, front_proxy=front_proxy)
    served = issue_serving(authority, common_name="gateway", hosts=["localhost"])
    serving = Serving(host="127.0.0.1", port=hold_port(), certificate=_pair(served))
    jane = _file(tmp_path / "jane.pem", issue_client(clients, user="jane", groups=("sales", "it")))
    directory = tmp_path / "gateway"
    directory.mkdir(mode=0o700)

    async def send(path: str, *headers: str, certificate: bool = False) -> dict[str, Any]:
        sent = http1(f"/clusters/one/control-plane{path}", *headers)
        own = jane if certificate else None
        answer = await exchange(serving.port, sent, ca=authority.certificate, certificate=own)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert ANSWER_HEADER.encode() not in head.lower()
        found: dict[str, Any] = json.loads(body)
        return found

    async with ProcessRuntime(tmp_path / "runtime", programs=[]) as runtime:
        validate = EnvoyValidator(envoy, directory=directory)
        plane = DataPlane(directory, validate=validate, program=envoy, runtime=runtime, waker=no_waker(), workers=1)
        async with plane.running():
            try:
                await plane.apply([Route(key="uid-one", cluster_path="one", upstream=upstream)], serving=serving)
                yield send
            finally:
                await plane.stop()
                await runner.cleanup()


def _claims(got: dict[str, Any]) -> list[tuple[str, str]]:
    words = ("x-remote", "x_remote", "x-kplane", "x-envoy", "x-forwarded-client", "x-forwarded-host")
    return [(name, value) for name, value in got["headers"] if name.startswith(words)]


async def test_a_token_comes_alone(ask: Ask) -> None:
    got = await ask("/api?x=/../y", "Authorization: Bearer t", *CLAIMS)
    headers = dict(got["headers"])
    assert got["path"] == "/api?x=/../y"
    assert headers["authorization"] == "Bearer t"
    assert _claims(got) == []
    assert "198.51.100.7" not in headers["x-forwarded-for"]
    assert not got["peer"]


async def test_a_request_without_a_credential_comes_to_no_api_server(ask: Ask) -> None:
    for headers in (CLAIMS, ("Authorization: Basic YTph",)):
        got = await ask("", *headers)
        assert (got["kind"], got["reason"]) == ("Status", "Unauthorized")


async def test_a_certificate_comes_as_the_user_that_the_gateway_found(ask: Ask) -> None:
    got = await ask("/api", *CLAIMS, certificate=True)
    claims = _claims(got)
    credential = [value for name, value in claims if name.endswith("%2fcredential-id")]
    assert [value.partition("=")[0] for value in credential] == ["X509SHA256"]
    left = sorted((name, value) for name, value in claims if not name.endswith("%2fcredential-id"))
    assert left == [("x-remote-group", "it"), ("x-remote-group", "sales"), ("x-remote-user", "jane")]
    assert got["peer"]


async def test_a_token_beside_a_certificate_counts(ask: Ask) -> None:
    got = await ask("/api", "Authorization: Bearer t", *CLAIMS, certificate=True)
    assert (_claims(got), got["peer"]) == ([], False)


async def test_a_request_is_sent_again_if_an_api_server_that_ends_refused_it(ask: Ask) -> None:
    assert (await ask("/ending/token", "Authorization: Bearer t"))["path"] == "/ending/token"
    assert (await ask("/ending/certificate", certificate=True))["path"] == "/ending/certificate"
    # Another 503 is an answer: that of an aggregated API, for example.
    assert await ask("/unavailable", "Authorization: Bearer t") == {"path": "/unavailable"}
