"""Requests to a sleeping control plane wait in a real Envoy until a real API server answers them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jwt
import pytest

from kplane.gateway.routes import Limits, Route, Sleep
from kplane.gateway.tokens import Issuer
from kplane.gateway.usage import Usage
from kplane.pki.primitives import create_signing_key
from kplane.pki.signatures import sign_claims
from kplane.provider import Client
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES
from kplane.workloads import find_processes
from tests.mcm.control_planes import controllers_token, manifest

from .attacker import exchange, http1, statuses
from .conftest import Gateway
from .fleet import with_bootstrap_token

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("gateway"), pytest.mark.timeout(300)]

MASTERS = ("system:masters",)
_MIB = 1 << 20


BOOTSTRAP_TOKEN = "abcdef.0123456789abcdef"


def _asleep(route: Route) -> Route:
    """Return the route of a control plane that sleeps, and that has a bootstrap token."""
    sleep = Sleep(name=route.cluster_path, since=datetime.now(UTC))
    return replace(with_bootstrap_token(route, BOOTSTRAP_TOKEN), asleep=sleep)


async def _answer(gateway: Gateway, path: str, *headers: str) -> tuple[int, Any]:
    received = await exchange(gateway.serving.port, http1(path, *headers), ca=gateway.ca)
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower()
    return statuses(received)[0], json.loads(body)


async def test_requests_wait_until_control_plane_is_awake(gateway: Gateway, eventually: Callable[..., Any]) -> None:
    route_one, route_two = gateway.route("one"), gateway.route("two")
    async with Client(gateway.tenants["one"].config) as direct:
        token = await controllers_token(direct, account=f"waiting-{gateway.serving.port}")
        namespace = f"waiting-{gateway.serving.port}"
        await direct.create(NAMESPACES, manifest("v1", "Namespace", namespace))
    assert await gateway.serve(_asleep(route_one), route_two) == {}

    async with (
        Client(gateway.config("one", token=token)) as robot,
        Client(gateway.user("one", "admin", groups=MASTERS)) as admin,
        Client(gateway.user("two", "admin", groups=MASTERS)) as other_client,
    ):
        creations = [
            asyncio.create_task(
                admin.create(CONFIG_MAPS, manifest("v1", "ConfigMap", f"c-{number}", namespace=namespace))
            )
            for number in range(10)
        ]
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        reviews = [asyncio.create_task(robot.request("POST", path, body=review)) for _ in range(10)]
        await eventually(lambda: gateway.waker.waiting, lambda waiting: waiting == 20)
        assert gateway.wakes == ["uid-one"]
        # Requests to the other control plane do not wait.
        assert (await other_client.list(NAMESPACES)).items

        # Envoy gets the address while the API server starts. Requests continue although Envoy has the former table.
        assert await gateway.serve(_asleep(route_one), route_two) == {}
        assert gateway.waker.waiting == 20
        gateway.plane.know([route_one, route_two])
        config_maps = await asyncio.gather(*creations)
        assert {item["metadata"]["name"] for item in config_maps} == {f"c-{number}" for number in range(10)}
        usernames = {(await item)["status"]["userInfo"]["username"] for item in reviews}
        assert usernames == {f"system:serviceaccount:kube-system:waiting-{gateway.serving.port}"}
        assert await gateway.serve(route_one, route_two) == {}
        assert (await robot.request("POST", path, body=review))["status"]

        # The same connections work after the control plane has fallen asleep again.
        await gateway.serve(_asleep(route_one), route_two)
        list_task = asyncio.create_task(admin.list(CONFIG_MAPS, namespace=namespace))
        await eventually(lambda: gateway.wakes, lambda wakes: wakes == ["uid-one", "uid-one"])
        await gateway.serve(route_one, route_two)
        assert len((await list_task).items) >= 10


async def test_request_with_invalid_credential_wakes_no_control_plane(gateway: Gateway) -> None:
    await gateway.serve(_asleep(gateway.route("one")), gateway.route("two"))
    path = "/clusters/one/control-plane/api/v1/namespaces"
    claims = {"iss": "https://kubernetes.default.svc.cluster.local", "exp": 1 << 40}
    forged = sign_claims(claims, key=create_signing_key())
    for headers in (
        (),
        (f"Authorization: Bearer {forged}",),
        ("Authorization: Bearer abcdef.0123456789abcdeg",),
        ("Authorization: Basic YTph",),
        ("X-Remote-User: admin",),
    ):
        code, answer = await _answer(gateway, path, *headers)
        assert (code, answer["kind"], answer["reason"]) == (401, "Status", "Unauthorized")
    code, answer = await _answer(gateway, path.replace("one", "ONE"), f"Authorization: Bearer {BOOTSTRAP_TOKEN}")
    assert (code, answer["reason"]) == (404, "NotFound")
    async with Client(gateway.user("two", "admin", groups=MASTERS, path="one")) as stranger:
        with pytest.raises(Exception, match="Unauthorized"):
            await stranger.list(NAMESPACES)
    assert gateway.wakes == []


async def test_unauthenticated_answers_do_not_reveal_control_planes(gateway: Gateway) -> None:
    """Control plane `one` sleeps, `two` is awake, `three` does not exist, `four` has no API server, `five` is at its
    storage quota, `six` has a body limit, and `seven` accepts tokens of an OIDC issuer.
    """
    awake_route = gateway.route("two")
    assert awake_route.upstream is not None
    issuer = Issuer(url="https://127.0.0.1:1", audiences=frozenset({"kubernetes"}))
    trust = replace(awake_route.upstream.trust, issuers=(issuer,))
    limits = Limits(set_by="ControlPlaneClass small", request_bytes=10)
    await gateway.serve(
        _asleep(gateway.route("one")),
        awake_route,
        Route(key="uid-four", cluster_path="four", upstream=None, why_absent="its phase is Failed"),
        replace(awake_route, key="uid-five", cluster_path="five", full=True),
        replace(awake_route, key="uid-six", cluster_path="six", limits=limits),
        replace(
            awake_route, key="uid-seven", cluster_path="seven", upstream=replace(awake_route.upstream, trust=trust)
        ),
    )
    names = ("one", "two", "three", "four", "five", "six", "seven")
    body = b"x" * 100
    claims = {"iss": "https://kubernetes.default.svc.cluster.local", "exp": 1 << 40}
    forged = sign_claims(claims, key=create_signing_key())
    unsigned = jwt.encode(claims | {"iss": issuer.url, "aud": "kubernetes"}, "x" * 32, algorithm="HS256")

    async def answers(rest: str, *headers: str, method: str) -> list[tuple[bytes, list[bytes], bytes]]:
        results = []
        for name in names:
            has_body = f"Content-Length: {len(body)}" in headers
            sent = http1(f"/clusters/{name}/control-plane{rest}", *headers, method=method, body=body * has_body)
            head, _, content = (await exchange(gateway.serving.port, sent, ca=gateway.ca)).partition(b"\r\n\r\n")
            code, *lines = head.split(b"\r\n")
            header_lines = [line for line in lines if not line.startswith((b"date:", b"audit-id:"))]
            assert len(lines) - len(header_lines) == 2
            results.append((code, sorted(header_lines), content))
        return results

    for rest, method, headers in (
        ("/api/v1/namespaces", "GET", ()),
        ("/api/v1/namespaces", "POST", ("Content-Length: 0",)),
        ("/api/v1/namespaces", "OPTIONS", ("Origin: https://example.org", "Access-Control-Request-Method: GET")),
        ("/readyz", "GET", ()),
        ("/version", "GET", ("Authorization: Basic YTph",)),
        ("/api/v1/namespaces/kube-public/configmaps/cluster-info", "GET", ()),
        ("", "GET", ("Authorization: Bearer",)),
        ("/api", "GET", ("Authorization: Bearer x",)),
        ("/api", "GET", (f"Authorization: Bearer {forged}",)),
        ("/api", "GET", (f"Authorization: Bearer {forged}", "Audit-ID: mine")),
        ("/api/v1/namespaces", "POST", ("Authorization: Bearer x", f"Content-Length: {len(body)}")),
        ("/api/v1/namespaces", "POST", (f"Authorization: Bearer {forged}", f"Content-Length: {len(body)}")),
        ("/api/v1/namespaces", "PUT", ("Authorization: Bearer x", "Content-Length: 0")),
        ("/api/v1/namespaces/a", "DELETE", ("Authorization: Bearer x", f"Content-Length: {len(body)}")),
        # This token names the issuer of `seven`, which did not sign it.
        ("/api", "GET", (f"Authorization: Bearer {unsigned}",)),
    ):
        first, *others = await answers(rest, *headers, method=method)
        for name, answer in zip(names[1:], others, strict=True):
            assert answer == first, (name, rest, method, headers)
        assert first[0].startswith(b"HTTP/1.1 401")
    assert gateway.wakes == []
    # These requests do not count as use of a control plane.
    numbers = await gateway.plane.numbers()
    assert numbers["cluster.uid-two.upstream_rq_total"] == numbers["cluster.uid-two.upstream_rq_401"] == 4
    assert Usage().look(numbers) == set()


async def test_request_gets_503_with_cause_when_wake_has_failed(gateway: Gateway) -> None:
    route = _asleep(gateway.route("one"))
    assert route.asleep is not None
    sleep = replace(route.asleep, failed=True, problem="Secret x is damaged: it has no entry sa.key; restore it")
    await gateway.serve(replace(route, asleep=sleep))
    sent = http1("/clusters/one/control-plane/api/v1/namespaces", f"Authorization: Bearer {BOOTSTRAP_TOKEN}")
    async with asyncio.timeout(20):
        received = await exchange(gateway.serving.port, sent, ca=gateway.ca)
    head, _, body = received.partition(b"\r\n\r\n")
    assert statuses(received)[0] == 503
    assert b"retry-after" not in head.lower()
    assert "cannot wake: Secret x is damaged: it has no entry sa.key" in json.loads(body)["message"]
    assert set(gateway.wakes) == {"uid-one"}


async def test_gateway_stops_waiting_when_client_disconnects(gateway: Gateway, eventually: Callable[..., Any]) -> None:
    await gateway.serve(_asleep(gateway.route("one")))
    sent = http1("/clusters/one/control-plane/api", f"Authorization: Bearer {BOOTSTRAP_TOKEN}")
    request = asyncio.create_task(exchange(gateway.serving.port, sent, ca=gateway.ca))
    await eventually(lambda: gateway.waker.waiting, lambda waiting: waiting == 1)
    request.cancel()
    await eventually(lambda: gateway.waker.waiting, lambda waiting: waiting == 0)


async def test_requests_beyond_waiter_limit_get_429(gateway: Gateway, eventually: Callable[..., Any]) -> None:
    await gateway.serve(_asleep(gateway.route("one")), gateway.route("two"))
    sent = http1("/clusters/one/control-plane/api", f"Authorization: Bearer {BOOTSTRAP_TOKEN}")
    requests = [asyncio.create_task(exchange(gateway.serving.port, sent, ca=gateway.ca)) for _ in range(101)]
    done, waiters = await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
    (answer,) = [request.result() for request in done]
    assert statuses(answer) == [429]
    assert b"retry-after: 1" in answer.lower()
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["reason"] == "TooManyRequests"
    # Waiting requests take no slots from other control planes.
    async with Client(gateway.user("two", "admin", groups=MASTERS)) as other_client:
        assert (await other_client.list(NAMESPACES)).items
    await gateway.serve(gateway.route("two"))
    answers = await asyncio.gather(*waiters)
    assert {code for answer in answers for code in statuses(answer)} == {404}


async def test_bodies_of_waiting_requests_take_little_memory(gateway: Gateway, eventually: Callable[..., Any]) -> None:
    async with Client(gateway.tenants["one"].config) as direct:
        token = await controllers_token(direct, account=f"large-{gateway.serving.port}")
    assert await gateway.serve(_asleep(gateway.route("one"))) == {}
    length = 3 << 20
    path = "/clusters/one/control-plane/api/v1/namespaces/default/configmaps"
    request = http1(path, f"Authorization: Bearer {token}", f"Content-Length: {length}", method="POST")

    (envoy,) = find_processes(gateway.directory.parent / "runtime" / "envoy")
    sizes = [0]

    def is_settled() -> bool:
        """Return whether the memory of Envoy has stopped growing."""
        status = Path(f"/proc/{envoy}/status").read_text()
        sizes.append(int(re.findall(r"RssAnon:\s+([0-9]+) kB", status)[0]) << 10)
        return sizes[-1] == sizes[-2]

    await eventually(is_settled)
    before = sizes[-1]
    body = bytes(length)
    sent = [asyncio.create_task(exchange(gateway.serving.port, request + body, ca=gateway.ca)) for _ in range(40)]
    try:
        await eventually(lambda: gateway.waker.waiting, lambda waiting: waiting == len(sent))
        await eventually(is_settled)
        assert sizes[-1] - before < len(sent) * _MIB
    finally:
        for task in sent:
            task.cancel()
        await asyncio.wait(sent)
