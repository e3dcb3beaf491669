"""What an API server gets of a request: nothing that a client says of who it is."""

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
        answered = {"Location": location} if (location := request.query.get("location")) else {}
        body = {"path": request.raw_path, "headers": headers, "peer": bool(peer)}
        if request.path == "/.well-known/openid-configuration":
            body = {"issuer": "https://kubernetes.default.svc", "jwks_uri": request.query["keys"], "end": 1}
        return web.json_response(body, status=301 if answered else 200, headers=answered)

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

    async def send(
        path: str,
        *headers: str,
        certificate: bool = False,
        prefix: str = "/clusters/one/control-plane",
        host: str = "gateway",
    ) -> dict[str, Any]:
        sent = http1(f"{prefix}{path}", *headers, host=host)
        own = jane if certificate else None
        answer = await exchange(serving.port, sent, ca=authority.certificate, certificate=own)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert ANSWER_HEADER.encode() not in head.lower()
        found: dict[str, Any] = json.loads(body)
        lines = [line.partition(": ") for line in head.decode().split("\r\n")]
        return {**found, "location": [value for name, _, value in lines if name.lower() == "location"]}

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
    got = await ask("/unavailable", "Authorization: Bearer t")
    assert "headers" not in got


@pytest.mark.parametrize("certificate", [False, True])
async def test_redirects_stay_below_the_path_of_the_control_plane(ask: Ask, certificate: bool) -> None:
    credential = () if certificate else ("Authorization: Bearer t",)

    async def location(given: str, *, path: str = "/api") -> str:
        (found,) = (await ask(f"{path}?location={given}", *credential, certificate=certificate))["location"]
        return str(found)

    prefix = "/clusters/one/control-plane"
    assert await location("/openapi/v3/api/v1%3Fhash%3DA") == f"{prefix}/openapi/v3/api/v1?hash=A"
    # These are of other servers, or relative to the path already.
    for given in ("https://example.org/x", "//example.org/x", "x/"):
        assert await location(given) == given
    assert (await ask("/api", *credential, certificate=certificate))["location"] == []
    # An API server keeps the host of a redirect by a pod that names the host of the request.
    proxy = "/api/v1/namespaces/a/pods/b/proxy"
    assert await location(f"http://gateway{proxy}/x", path=f"{proxy}/") == f"http://gateway{prefix}{proxy}/x"
    for given in ("https://example.org/x", "//gateway/x", "https://gateway.example.org/x"):
        assert await location(given, path=f"{proxy}/") == given


@pytest.mark.parametrize("certificate", [False, True])
async def test_discovery_document_names_keys_at_the_gateway(ask: Ask, certificate: bool) -> None:
    credential = () if certificate else ("Authorization: Bearer t",)

    async def keys(given: str) -> Any:
        path = f"/.well-known/openid-configuration?keys={given}"
        got = await ask(path, *credential, host="api.example.org:8443", certificate=certificate)
        assert (got["issuer"], got["end"]) == ("https://kubernetes.default.svc", 1)
        return got["jwks_uri"]

    at_gateway = "https://api.example.org:8443/clusters/one/control-plane/openid/v1/jwks"
    assert await keys("https://10.0.0.1:6443/openid/v1/jwks") == at_gateway
    assert await keys("https://%5Bfd00::1%5D:6443/openid/v1/jwks") == at_gateway
    # An administrator has chosen these.
    for given in ("https://keys.example.org/acme/jwks", "https://cafe.example.org/openid/v1/jwks"):
        assert await keys(given) == given


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        ("/api/v1/namespaces", 404, "paths begin with /clusters/NAME/control-plane; your client may drop the path"),
        (
            "/clusters/one/control-plane//api",
            400,
            "has // after /clusters/NAME/control-plane; remove the slash at the end",
        ),
        ("/clusters/one/control-plane/../api", 400, "dot segments"),
    ],
)
async def test_path_that_is_refused_says_why(ask: Ask, path: str, code: int, said: str) -> None:
    got = await ask(path, "Authorization: Bearer t", prefix="")
    assert got["code"] == code
    assert said in got["message"]
