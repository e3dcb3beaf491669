"""Requests that a real Envoy refuses or passes after a control plane has reached a limit of its class."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.gateway.routes import Limits
from kplane.pki.primitives import issue_client
from kplane.provider import ApiError, Client
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES
from tests.mcm.control_planes import controllers_token, manifest

from .attacker import exchange, http1, statuses
from .conftest import Gateway

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("gateway"), pytest.mark.timeout(300)]

MASTERS = ("system:masters",)
CLASS = "ControlPlaneClass small"


async def _serve(gateway: Gateway, *, full: bool = False, **limits: int) -> None:
    route = dataclasses.replace(gateway.route("one"), full=full, limits=Limits(set_by=CLASS, **limits))
    assert await gateway.serve(route, gateway.route("two")) == {}


async def _refused(asked: Any, *, code: int, reason: str, limit: str) -> None:
    with pytest.raises(ApiError) as caught:
        await asked
    assert (caught.value.status, caught.value.reason) == (code, reason)
    assert CLASS in str(caught.value)
    assert limit in str(caught.value)


def _config_map(name: str, **data: str) -> dict[str, Any]:
    return manifest("v1", "ConfigMap", name, namespace="default") | {"data": data}


async def test_full_control_plane_refuses_growth_and_allows_deletion(gateway: Gateway) -> None:
    async with Client(gateway.tenants["one"].config, field_manager="kplane") as direct:
        token = await controllers_token(direct, account=f"filler-{gateway.serving.port}")
        for user in ("token", "certificate"):
            config_map = _config_map(f"{user}-{gateway.serving.port}")
            config_map["metadata"]["finalizers"] = ["example.org/held"]
            await direct.create(CONFIG_MAPS, config_map)
    await _serve(gateway, full=True)
    users = {"token": gateway.config("one", token=token), "certificate": gateway.user("one", "admin", groups=MASTERS)}
    for user, config in users.items():
        name = f"{user}-{gateway.serving.port}"
        async with Client(config, field_manager="kplane") as client:
            refusal = {"code": 403, "reason": "Forbidden", "limit": "virtual.storage.quota"}
            await _refused(client.create(CONFIG_MAPS, _config_map("more")), **refusal)
            existing = await client.get(CONFIG_MAPS, name, namespace="default")
            await _refused(client.replace(CONFIG_MAPS, existing | {"data": {"x": "y"}}), **refusal)
            large_patch = {"data": {"x": "y" * 1000}}
            await _refused(client.patch(CONFIG_MAPS, name, large_patch, namespace="default"), **refusal)
            await _refused(client.apply(CONFIG_MAPS, _config_map("applied"), force=True), **refusal)
            # Requests that store no additional data.
            review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
            assert await client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=review)
            token_request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
            account = f"/api/v1/namespaces/kube-system/serviceaccounts/filler-{gateway.serving.port}/token"
            assert await client.request("POST", account, body=token_request)
            assert await client.patch(NAMESPACES, "default", {"status": {"phase": "Active"}}, subresource="status")
            await client.delete(CONFIG_MAPS, name, namespace="default")
            await client.patch(CONFIG_MAPS, name, {"metadata": {"finalizers": None}}, namespace="default")
    async with Client(gateway.user("two", "admin", groups=MASTERS), field_manager="kplane") as other_client:
        assert await other_client.create(CONFIG_MAPS, _config_map(f"other-{gateway.serving.port}"))


async def test_requests_beyond_rate_limit_get_429(gateway: Gateway) -> None:
    async with Client(gateway.tenants["one"].config, field_manager="kplane") as direct:
        token = await controllers_token(direct, account=f"fast-{gateway.serving.port}")
    await _serve(gateway, requests_per_second=5)
    path = "/clusters/one/control-plane/api/v1/namespaces/default"
    requests = [
        exchange(gateway.serving.port, http1(path, f"Authorization: Bearer {token}"), ca=gateway.ca) for _ in range(40)
    ]
    other_requests = [
        exchange(
            gateway.serving.port, http1(path.replace("one", "two"), f"Authorization: Bearer {token}"), ca=gateway.ca
        )
        for _ in range(40)
    ]
    answers, other_answers = await asyncio.gather(asyncio.gather(*requests), asyncio.gather(*other_requests))
    codes = [statuses(answer)[0] for answer in answers]
    assert set(codes) == {200, 429}
    # The other control plane does not know the token. Few requests with unknown tokens may be in flight at once.
    assert 401 in {statuses(answer)[0] for answer in other_answers} <= {401, 429}
    head, _, body = answers[codes.index(429)].partition(b"\r\n\r\n")
    assert b"retry-after: 1" in head.lower()
    status = json.loads(body)
    assert (status["kind"], status["reason"], status["code"]) == ("Status", "TooManyRequests", 429)
    assert CLASS in status["message"]
    assert "requestsPerSecond" in status["message"]


async def test_rate_limit_applies_to_users_with_certificates(gateway: Gateway, tmp_path: Path) -> None:
    await _serve(gateway, requests_per_second=1)
    certificate = tmp_path / "client.pem"
    pair = issue_client(gateway.tenants["one"].authorities.client, user="admin", groups=MASTERS)
    certificate.write_bytes(pair.certificate + pair.key)
    request = http1("/clusters/one/control-plane/api/v1/namespaces/default")
    requests = [exchange(gateway.serving.port, request, ca=gateway.ca, certificate=certificate) for _ in range(40)]
    answers = await asyncio.gather(*requests)
    codes = [statuses(answer)[0] for answer in answers]
    assert set(codes) == {200, 429}
    assert CLASS in answers[codes.index(429)].decode()


async def test_body_beyond_limit_gets_413(gateway: Gateway) -> None:
    async with Client(gateway.tenants["one"].config, field_manager="kplane") as direct:
        token = await controllers_token(direct, account=f"long-{gateway.serving.port}")
    await _serve(gateway, request_bytes=10_000)
    users = {"token": gateway.config("one", token=token), "certificate": gateway.user("one", "admin", groups=MASTERS)}
    for user, config in users.items():
        name = f"length-{user}-{gateway.serving.port}"
        async with Client(config, field_manager="kplane") as client:
            refusal = {"code": 413, "reason": "RequestEntityTooLarge", "limit": "requestBytes"}
            await _refused(client.create(CONFIG_MAPS, _config_map(name, x="y" * 10_000)), **refusal)
            with pytest.raises(ApiError, match=r"longer than the 10000 bytes that .*; send less") as caught:
                await client.create(CONFIG_MAPS, _config_map(name, x="y" * 10_000))
            assert "Content-Length" not in str(caught.value)
            assert await client.create(CONFIG_MAPS, _config_map(name, x="y" * 9_000))
            await client.delete(CONFIG_MAPS, name, namespace="default")
    chunked = http1(
        "/clusters/one/control-plane/api/v1/namespaces/default/configmaps",
        f"Authorization: Bearer {token}",
        "Transfer-Encoding: chunked",
        method="POST",
    )
    answer = (await exchange(gateway.serving.port, chunked + b"0\r\n\r\n", ca=gateway.ca)).decode()
    assert statuses(answer.encode())[0] == 413
    assert "has no Content-Length to hold against the 10000 bytes that" in answer
    assert "is longer than" not in answer


async def test_request_beyond_in_flight_limit_gets_429(gateway: Gateway, eventually: Callable[..., Any]) -> None:
    async with Client(gateway.tenants["one"].config, field_manager="kplane") as direct:
        token = await controllers_token(direct, account=f"many-{gateway.serving.port}")
    await _serve(gateway, requests_in_flight=3)
    async with Client(gateway.config("one", token=token), field_manager="kplane") as client:
        watches = [asyncio.create_task(_watched(gateway, token)) for _ in range(3)]
        try:

            async def in_flight() -> int:
                return (await gateway.plane.numbers()).get("cluster.uid-one.upstream_rq_active", 0)

            await eventually(in_flight, lambda active: active == 3)
            path = "/clusters/one/control-plane/api/v1/namespaces"
            answer = await exchange(gateway.serving.port, http1(path, f"Authorization: Bearer {token}"), ca=gateway.ca)
            head, _, body = answer.partition(b"\r\n\r\n")
            assert statuses(answer) == [429]
            assert b"retry-after: 1" in head.lower()
            status = json.loads(body)
            assert status["reason"] == "TooManyRequests"
            assert f"{CLASS} allows no more requests of this control plane in flight" in status["message"]
            # Changes do not wait behind watches.
            name = f"many-{gateway.serving.port}"
            assert await client.create(CONFIG_MAPS, _config_map(name))
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.wait(watches)


async def _watched(gateway: Gateway, token: str) -> None:
    path = "/clusters/one/control-plane/api/v1/configmaps?watch=true"
    await exchange(gateway.serving.port, http1(path, f"Authorization: Bearer {token}"), ca=gateway.ca)


async def test_anonymous_requests_do_not_count_for_class_limits(gateway: Gateway) -> None:
    async with Client(gateway.tenants["one"].config, field_manager="kplane") as direct:
        token = await controllers_token(direct, account=f"limited-{gateway.serving.port}")
    route = gateway.route("one")
    assert route.upstream is not None
    upstream = dataclasses.replace(route.upstream, trust=dataclasses.replace(route.upstream.trust, cluster_info=True))
    limits = Limits(set_by=CLASS, requests_per_second=2, requests_in_flight=2)
    assert await gateway.serve(dataclasses.replace(route, upstream=upstream, limits=limits)) == {}

    async def codes(path: str, *headers: str, method: str = "GET", number: int = 60) -> list[int]:
        sent = http1(f"/clusters/one/control-plane/api/v1/{path}", *headers, method=method)
        requests = [exchange(gateway.serving.port, sent, ca=gateway.ca) for _ in range(number)]
        return [statuses(answer)[0] for answer in await asyncio.gather(*requests)]

    info = "namespaces/kube-public/configmaps/cluster-info"
    assert set(await codes("namespaces", "Content-Length: 1000", method="POST")) == {401}
    # The API server refuses the read, because no add-on grants anonymous users access.
    assert await codes(f"{info}?timeout=10s", number=1) == [403]
    assert set(await codes(info, number=120)) == {403, 429}
    assert set(await codes(info, method="DELETE", number=1)) == {401}
    assert await codes("namespaces/default", f"Authorization: Bearer {token}", number=2) == [200, 200]
