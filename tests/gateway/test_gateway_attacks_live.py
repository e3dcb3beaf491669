"""Attacks of a user of tenant `one` on tenant `two` through the gateway. All attacks are refused."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from kplane.pki.primitives import create_authority, issue_client
from kplane.provider import Client
from kplane.provider.client.resources import CONFIG_MAPS
from tests.mcm.control_planes import controllers_token

from .attacker import exchange, http1, http2, statuses
from .conftest import Gateway

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("gateway"), pytest.mark.timeout(600)]

MARK = "what-tenant-two-keeps"
REFUSED = {400, 401, 403, 404, 426, 431}

TARGET = "/clusters/two/control-plane/api/v1/namespaces/default/configmaps"
PATHS = (
    TARGET,
    "/clusters/one/control-plane/../../two/control-plane/api/v1/configmaps",
    "/clusters/one/control-plane/%2e%2e/%2e%2e/two/control-plane/api/v1/configmaps",
    "/clusters/one/control-plane/..%2f..%2ftwo/control-plane/api/v1/configmaps",
    "/clusters/one/control-plane/.%2e/.%2e/two/control-plane/api/v1/configmaps",
    "/clusters/one/control-plane/..%252f..%252ftwo/control-plane/api/v1/configmaps",
    "/clusters/one/control-plane/..\\..\\two\\control-plane/api/v1/configmaps",
    "/clusters/one/../two/control-plane/api/v1/configmaps",
    "/clusters//two/control-plane/api/v1/configmaps",
    "//clusters/two/control-plane/api/v1/configmaps",
    "/clusters/two//control-plane/api/v1/configmaps",
    "/clusters/two/control-plane//api/v1/configmaps",
    "/Clusters/Two/Control-Plane/api/v1/configmaps",
    "/clusters/TWO/control-plane/api/v1/configmaps",
    "/clusters/tw%6f/control-plane/api/v1/configmaps",
    "/clusters/two%2fcontrol-plane/api/v1/configmaps",
    "/clusters/one%00/control-plane/api/v1/configmaps",
    "/clusters/two;/control-plane/api/v1/configmaps",
    "/clusters/two/control-planex/api/v1/configmaps",
    "https://localhost/clusters/two/control-plane/api/v1/configmaps",
    "https://two/api/v1/configmaps",
    "/clusters/one/control-plane/clusters/two/control-plane/api/v1/configmaps",
    "/api/v1/configmaps",
)
HEADERS: tuple[tuple[str, ...], ...] = (
    (),
    ("X-Remote-User: admin", "X-Remote-Group: system:masters"),
    ("x-remote-user: admin", "X-REMOTE-GROUP: system:masters", "X-Remote-Uid: 1", "X-Remote-Extra-Any: x"),
    ("X_Remote_User: admin", "X_Remote_Group: system:masters"),
    ("X-Kplane-Upstream: uid-two/front-proxy", "X-Kplane-Group-0: system:masters", "X-Remote-User: admin"),
    ('X-Forwarded-Client-Cert: Chain="forged"', "X-Forwarded-Host: two", "X-Forwarded-For: 127.0.0.1"),
    ("X-Envoy-Original-Path: " + TARGET, "X-Envoy-Internal: true", "X-Original-URL: " + TARGET),
    ("Connection: X-Remote-User, X-Forwarded-Client-Cert, Authorization", "X-Remote-User: admin"),
    ("Impersonate-User: admin", "Impersonate-Group: system:masters"),
    ("Authorization: Basic YWRtaW46YWRtaW4=",),
)


@pytest.fixture
async def credentials(gateway: Gateway, tmp_path: Path) -> dict[str, tuple[Path | None, tuple[str, ...]]]:
    """Client certificate and headers by name. Valid credentials belong to an administrator of tenant `one`."""

    def written(name: str, pair: Any) -> Path:
        file = tmp_path / f"{name}.pem"
        file.write_bytes(pair.certificate + pair.key)
        return file

    async with Client(gateway.tenants["two"].config, field_manager="kplane") as other_tenant:
        await other_tenant.apply(
            CONFIG_MAPS, {"metadata": {"name": "kept", "namespace": "default"}, "data": {"mark": MARK}}, force=True
        )
    async with Client(gateway.tenants["one"].config, field_manager="kplane") as own_tenant:
        token = await controllers_token(own_tenant, account=f"mallory-{gateway.serving.port}")
    client_ca = gateway.tenants["one"].authorities.client
    masters = {"user": "admin", "groups": ("system:masters",)}
    own_certificate = written("own", issue_client(client_ca, **masters))
    # Certificates of a different CA with the same name, and of the front-proxy CA of the API server.
    forged = written("forged", issue_client(create_authority("client"), **masters))
    proxy = written("proxy", issue_client(gateway.tenants["one"].authorities.front_proxy, user="front-proxy-client"))
    bearer = f"Authorization: Bearer {token}"
    return {
        "nobody": (None, ()),
        "token": (None, (bearer,)),
        "certificate": (own_certificate, ()),
        "certificate and token": (own_certificate, (bearer,)),
        "forged certificate": (forged, ()),
        "front-proxy certificate": (proxy, ()),
        "forged token": (None, ("Authorization: Bearer eyJhbGciOiJub25lIn0.e30.",)),
        "certificate and forged token": (own_certificate, ("Authorization: Bearer x",)),
    }


@pytest.mark.slow
async def test_gateway_returns_no_data_of_another_tenant(gateway: Gateway, credentials: Any) -> None:
    attempts = list(itertools.product(credentials.items(), HEADERS, PATHS))
    assert len(attempts) > 1500
    slots = asyncio.Semaphore(16)
    breaches: list[str] = []

    async def attempt(credential: Any, headers: tuple[str, ...], path: str) -> None:
        name, (certificate, own_headers) = credential
        async with slots:
            sent = http1(path, *own_headers, *headers)
            answer = await exchange(gateway.serving.port, sent, ca=gateway.ca, certificate=certificate)
        if MARK.encode() in answer or len(statuses(answer)) != 1 or not set(statuses(answer)) <= REFUSED:
            breaches.append(f"{name} {headers} {path}: {answer[:200]!r}")

    async with asyncio.TaskGroup() as group:
        for credential, headers, path in attempts:
            group.create_task(attempt(credential, headers, path))
    assert breaches == []


SMUGGLING: tuple[tuple[str, ...], ...] = (
    ("Content-Length: {length}", "Transfer-Encoding: chunked"),
    ("Transfer-Encoding: chunked", "Content-Length: 6"),
    ("Transfer-Encoding: chunked, identity",),
    ("Transfer-Encoding: xchunked",),
    ("Transfer-Encoding : chunked", "Content-Length: {length}"),
    ("Transfer-Encoding:\tchunked", "Content-Length: {length}"),
    ("Content-Length: 0", "Content-Length: {length}"),
    ("Content-Length: +{length}",),
    ("Content-Length: 0x10",),
    ("Transfer-Encoding: chunked", "Transfer-Encoding: identity", "Content-Length: {length}"),
)


async def test_gateway_refuses_smuggled_requests(gateway: Gateway, credentials: Any) -> None:
    async def smuggle(heads: tuple[str, ...], certificate: Path | None, own: tuple[str, ...]) -> bytes:
        inner = http1(TARGET, *own, "X-Remote-User: admin", "X-Remote-Group: system:masters")
        body = b"0\r\n\r\n" + inner
        head = tuple(line.format(length=len(body)) for line in heads)
        path = "/clusters/one/control-plane/api/v1/namespaces/default/configmaps"
        sent = http1(path, *own, "Content-Type: application/json", *head, method="POST", body=body)
        return await exchange(gateway.serving.port, sent, ca=gateway.ca, certificate=certificate, to_the_end=True)

    attempts = list(itertools.product(SMUGGLING, ("token", "certificate")))
    answers = await asyncio.gather(*(smuggle(heads, *credentials[name]) for heads, name in attempts))
    for (heads, name), answer in zip(attempts, answers, strict=True):
        assert MARK.encode() not in answer, (heads, name)
        assert statuses(answer), (heads, name)
        assert set(statuses(answer)) <= REFUSED | {415, 422, 501}, (heads, name, answer[:300])


@pytest.mark.parametrize("upgrade", ["websocket", "SPDY/3.1"])
async def test_early_data_of_upgrade_reaches_no_api_server(gateway: Gateway, tmp_path: Path, upgrade: str) -> None:
    """The API server would parse early data as a request, on a connection whose X-Remote-User it trusts."""
    certificate = tmp_path / "nobody.pem"
    pair = issue_client(gateway.tenants["one"].authorities.client, user="nobody")
    certificate.write_bytes(pair.certificate + pair.key)
    name = f"early-{gateway.serving.port}-{upgrade[:4].lower()}"
    body = json.dumps({"metadata": {"name": name}}).encode()
    forged = ("X-Remote-User: admin", "X-Remote-Group: system:masters", "Content-Type: application/json")
    path = "/api/v1/namespaces/default/configmaps"
    inner = http1(path, *forged, f"Content-Length: {len(body)}", method="POST", body=body)
    for target in (
        "",
        f"/clusters/one/control-plane{path}",
        "/clusters/one/control-plane/api/v1/namespaces?watch=true",
    ):
        outer = http1(
            target or "/clusters/one/control-plane/healthz", f"Upgrade: {upgrade}", "Sec-WebSocket-Version: 13"
        )
        sent = outer.replace(b"Connection: close", b"Connection: Upgrade") + inner
        answer = await exchange(gateway.serving.port, sent, ca=gateway.ca, certificate=certificate)
        assert name.encode() not in answer
        assert len(statuses(answer)) == 1
    async with Client(gateway.tenants["one"].config, field_manager="kplane") as direct:
        assert not await direct.exists(CONFIG_MAPS, name, namespace="default")


PSEUDO_HEADERS: tuple[dict[str, str], ...] = (
    {":path": TARGET},
    {":path": TARGET, ":authority": "two"},
    {":path": "/api/v1/configmaps", ":authority": "localhost/clusters/two/control-plane"},
    {":path": "https://localhost" + TARGET},
    {":path": PATHS[1]},
    {":path": PATHS[3]},
    {":path": "*"},
    {":path": "clusters/two/control-plane/api"},
    {":path": TARGET + "#x"},
    {":method": "CONNECT", ":path": TARGET},
    {":scheme": "file", ":path": TARGET},
)


async def test_http2_requests_return_no_data_of_another_tenant(gateway: Gateway, credentials: Any) -> None:
    async def attempt(pseudo: dict[str, str], certificate: Path | None, own: tuple[str, ...]) -> bytes:
        pseudo_headers = {":method": "GET", ":scheme": "https", ":authority": "localhost"} | pseudo
        lines = (*own, "x-remote-user: admin", "x-remote-group: system:masters", "x-kplane-upstream: uid-two")
        headers = [(name.strip().lower(), value.strip()) for name, value in (line.split(":", 1) for line in lines)]
        sent = http2(pseudo_headers.items(), headers)
        return await exchange(gateway.serving.port, sent, ca=gateway.ca, certificate=certificate, protocol="h2")

    attempts = list(itertools.product(PSEUDO_HEADERS, credentials.items()))
    answers = await asyncio.gather(*(attempt(pseudo, *credential) for pseudo, (_, credential) in attempts))
    for (pseudo, (name, _)), answer in zip(attempts, answers, strict=True):
        # An empty answer means that Envoy closed the connection for invalid HTTP/2.
        assert MARK.encode() not in answer, (pseudo, name)


async def test_http2_helper_sends_valid_requests(gateway: Gateway, credentials: Any) -> None:
    """Proves that invalid frames are not the reason for the refusals in the other HTTP/2 tests."""
    certificate, own_headers = credentials["token"]
    path = "/clusters/one/control-plane/api/v1/namespaces/kube-system"
    pseudo_headers = {":method": "GET", ":scheme": "https", ":authority": "localhost", ":path": path}
    headers = [(name.lower(), value.strip()) for name, value in (line.split(":", 1) for line in own_headers)]
    answer = await exchange(
        gateway.serving.port,
        http2(pseudo_headers.items(), headers),
        ca=gateway.ca,
        certificate=certificate,
        protocol="h2",
    )
    assert b'"kubernetes.io/metadata.name":"kube-system"' in answer


async def test_tenant_user_reads_marked_config_map(gateway: Gateway, credentials: Any) -> None:
    """Proves that leaked data would contain the mark that the other tests look for."""
    async with Client(gateway.user("two", "admin", groups=("system:masters",)), field_manager="kplane") as client:
        config_maps = await client.list(CONFIG_MAPS, namespace="default")
        assert MARK in str(config_maps.items)
