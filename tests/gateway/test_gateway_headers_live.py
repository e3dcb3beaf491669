"""Requests as an API server gets them, without identity headers from clients."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kplane.gateway import routes
from kplane.gateway.data_plane import DataPlane
from kplane.gateway.envoy.listener import Serving
from kplane.gateway.envoy.readiness import ANSWER_HEADER
from kplane.gateway.program import EnvoyValidator
from kplane.gateway.routes import FrontProxy, Route, Upstream
from kplane.pki.primitives import KeyPair, create_authority, issue_client, issue_serving
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
"""Exceeds the retries of Envoy in a row, so that a try reaches the waiting room."""


def _pair(pair: KeyPair) -> routes.KeyPair:
    return routes.KeyPair(pair.certificate, pair.key)


def _file(path: Path, pair: KeyPair) -> Path:
    path.write_bytes(pair.certificate + pair.key)
    return path


@pytest.fixture
async def ask(envoy: Path, tmp_path: Path, hold_port: Callable[[], int]) -> AsyncIterator[Ask]:
    """Send a request through a gateway to a server that returns the request. `certificate` authenticates as jane."""
    authority, clients, proxies = (create_authority(name) for name in ("serving", "clients", "proxies"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=proxies.certificate.decode())
    server = _file(tmp_path / "server.pem", issue_serving(authority, common_name="x", hosts=["127.0.0.1"]))
    context.load_cert_chain(server)
    context.verify_mode = ssl.CERT_OPTIONAL

    refused = list[str]()

    async def echo(request: web.BaseRequest) -> web.Response:
        if request.raw_path.startswith("/ending") and refused.count(request.raw_path) < _REFUSALS:
            refused.append(request.raw_path)
            response_headers = {"Retry-After": "1", "X-Content-Type-Options": "nosniff"}
            return web.Response(
                status=503, headers=response_headers, body=b'{"kind":"Status"}', content_type="application/json"
            )
        if request.raw_path == "/unavailable":
            return web.json_response({"path": request.raw_path}, status=503)
        transport = request.transport
        peer = transport.get_extra_info("peercert") if transport is not None else None
        headers = [(name.lower(), value) for name, value in request.headers.items()]
        location_header = {"Location": location} if (location := request.query.get("location")) else {}
        body = {"path": request.raw_path, "headers": headers, "peer": bool(peer)}
        if request.path == "/.well-known/openid-configuration":
            body = {"issuer": "https://kubernetes.default.svc", "jwks_uri": request.query["keys"], "end": 1}
        return web.json_response(body, status=301 if location_header else 200, headers=location_header)

    runner = web.ServerRunner(web.Server(echo))
    await runner.setup()
    port = hold_port()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context, reuse_address=True).start()
    front_proxy = FrontProxy(
        certificate=_pair(issue_client(proxies, user="front-proxy-client")), client_ca=clients.certificate
    )
    upstream = Upstream.at(f"https://127.0.0.1:{port}", ca=authority.certificate, front_proxy=front_proxy)
    pair = issue_serving(authority, common_name="gateway", hosts=["localhost"])
    serving = Serving(host="127.0.0.1", port=hold_port(), certificate=_pair(pair))
    jane = _file(tmp_path / "jane.pem", issue_client(clients, user="jane", groups=("sales", "it")))
    directory = tmp_path / "gateway"
    directory.mkdir(mode=0o700)

    async def send(
        path: str,
        *headers: str,
        certificate: bool = False,
        prefix: str = "/clusters/one/control-plane",
        host: str = "gateway",
    ) -> dict[str, Any]:
        sent = http1(f"{prefix}{path}", *headers, host=host)
        user_file = jane if certificate else None
        answer = await exchange(serving.port, sent, ca=authority.certificate, certificate=user_file)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert ANSWER_HEADER.encode() not in head.lower()
        document: dict[str, Any] = json.loads(body)
        lines = [line.partition(": ") for line in head.decode().split("\r\n")]
        return {**document, "location": [value for name, _, value in lines if name.lower() == "location"]}

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


async def test_request_with_token_has_no_identity_headers(ask: Ask) -> None:
    request = await ask("/api?x=/../y", "Authorization: Bearer t", *CLAIMS)
    headers = dict(request["headers"])
    assert request["path"] == "/api?x=/../y"
    assert headers["authorization"] == "Bearer t"
    assert _claims(request) == []
    assert "198.51.100.7" not in headers["x-forwarded-for"]
    assert not request["peer"]


async def test_request_without_credential_is_refused_by_gateway(ask: Ask) -> None:
    for headers in (CLAIMS, ("Authorization: Basic YTph",)):
        response = await ask("", *headers)
        assert (response["kind"], response["reason"]) == ("Status", "Unauthorized")


async def test_request_with_certificate_has_headers_of_its_user(ask: Ask) -> None:
    request = await ask("/api", *CLAIMS, certificate=True)
    claims = _claims(request)
    credential = [value for name, value in claims if name.endswith("%2fcredential-id")]
    assert [value.partition("=")[0] for value in credential] == ["X509SHA256"]
    identity = sorted((name, value) for name, value in claims if not name.endswith("%2fcredential-id"))
    assert identity == [("x-remote-group", "it"), ("x-remote-group", "sales"), ("x-remote-user", "jane")]
    assert request["peer"]


async def test_token_takes_precedence_over_certificate(ask: Ask) -> None:
    request = await ask("/api", "Authorization: Bearer t", *CLAIMS, certificate=True)
    assert (_claims(request), request["peer"]) == ([], False)


async def test_request_is_retried_when_stopping_api_server_refuses_it(ask: Ask) -> None:
    assert (await ask("/ending/token", "Authorization: Bearer t"))["path"] == "/ending/token"
    assert (await ask("/ending/certificate", certificate=True))["path"] == "/ending/certificate"
    # A different 503, for example of an aggregated API, is returned to the client.
    response = await ask("/unavailable", "Authorization: Bearer t")
    assert "headers" not in response


@pytest.mark.parametrize("certificate", [False, True])
async def test_redirect_stays_below_path_of_control_plane(ask: Ask, certificate: bool) -> None:
    credential = () if certificate else ("Authorization: Bearer t",)

    async def location(given: str, *, path: str = "/api") -> str:
        (value,) = (await ask(f"{path}?location={given}", *credential, certificate=certificate))["location"]
        return str(value)

    prefix = "/clusters/one/control-plane"
    assert await location("/openapi/v3/api/v1%3Fhash%3DA") == f"{prefix}/openapi/v3/api/v1?hash=A"
    # Redirects to other servers and relative redirects stay unchanged.
    for target in ("https://example.org/x", "//example.org/x", "x/"):
        assert await location(target) == target
    assert (await ask("/api", *credential, certificate=certificate))["location"] == []
    # An API server keeps the host of a redirect by a pod that names the host of the request.
    proxy = "/api/v1/namespaces/a/pods/b/proxy"
    assert await location(f"http://gateway{proxy}/x", path=f"{proxy}/") == f"http://gateway{prefix}{proxy}/x"
    for target in ("https://example.org/x", "//gateway/x", "https://gateway.example.org/x"):
        assert await location(target, path=f"{proxy}/") == target


@pytest.mark.parametrize("certificate", [False, True])
async def test_discovery_document_has_jwks_uri_of_gateway(ask: Ask, certificate: bool) -> None:
    credential = () if certificate else ("Authorization: Bearer t",)

    async def keys(given: str) -> Any:
        path = f"/.well-known/openid-configuration?keys={given}"
        document = await ask(path, *credential, host="api.example.org:8443", certificate=certificate)
        assert (document["issuer"], document["end"]) == ("https://kubernetes.default.svc", 1)
        return document["jwks_uri"]

    at_gateway = "https://api.example.org:8443/clusters/one/control-plane/openid/v1/jwks"
    assert await keys("https://10.0.0.1:6443/openid/v1/jwks") == at_gateway
    assert await keys("https://%5Bfd00::1%5D:6443/openid/v1/jwks") == at_gateway
    # An administrator has configured these URLs.
    for url in ("https://keys.example.org/acme/jwks", "https://cafe.example.org/openid/v1/jwks"):
        assert await keys(url) == url


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        ("/api/v1/namespaces", 404, "paths begin with /clusters/NAME/control-plane; your client may drop the path"),
        *(
            (path, 400, "has // at /clusters/NAME/control-plane; remove the second slash")
            for path in (
                "/clusters/one/control-plane//api",
                "//clusters/one/control-plane/api",
                "/clusters//one/control-plane/api",
                "/clusters/one//control-plane/api",
            )
        ),
        ("/clusters/one/control-plane/../api", 400, "dot segments"),
    ],
)
async def test_refused_path_returns_reason(ask: Ask, path: str, code: int, said: str) -> None:
    response = await ask(path, "Authorization: Bearer t", prefix="")
    assert response["code"] == code
    assert said in response["message"]
