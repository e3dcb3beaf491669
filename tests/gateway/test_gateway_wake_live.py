"""Requests to a control plane that sleeps wait in a real Envoy, and a real API server answers them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kplane.gateway.routes import Route, Sleep
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
    """Of a control plane that sleeps, and had one bootstrap token before."""
    sleep = Sleep(name=route.cluster_path, since=datetime.now(UTC))
    return replace(with_bootstrap_token(route, BOOTSTRAP_TOKEN), asleep=sleep)


async def _answer(gateway: Gateway, path: str, *headers: str) -> tuple[int, Any]:
    received = await exchange(gateway.serving.port, http1(path, *headers), ca=gateway.ca)
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower()
    return statuses(received)[0], json.loads(body)


async def test_requests_wait_and_are_answered(gateway: Gateway, eventually: Callable[..., Any]) -> None:
    one, two = gateway.route("one"), gateway.route("two")
    async with Client(gateway.tenants["one"].config) as direct:
        token = await controllers_token(direct, account=f"waiting-{gateway.serving.port}")
        namespace = f"waiting-{gateway.serving.port}"
        await direct.create(NAMESPACES, manifest("v1", "Namespace", namespace))
    assert await gateway.serve(_asleep(one), two) == {}

    async with (
        Client(gateway.config("one", token=token)) as robot,
        Client(gateway.user("one", "admin", groups=MASTERS)) as admin,
        Client(gateway.user("two", "admin", groups=MASTERS)) as other,
    ):
        created = [
            asyncio.create_task(
                admin.create(CONFIG_MAPS, manifest("v1", "ConfigMap", f"c-{number}", namespace=namespace))
            )
            for number in range(10)
        ]
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        asked = [asyncio.create_task(robot.request("POST", path, body=review)) for _ in range(10)]
        await eventually(lambda: gateway.waker.waiting, lambda waiting: waiting == 20)
        assert gateway.wakes == ["uid-one"]
        # Nobody else waits.
        assert (await other.list(NAMESPACES)).items

        # While the API server starts, Envoy learns how to reach it. Requests go on although it has the table of before.
        assert await gateway.serve(_asleep(one), two) == {}
        assert gateway.waker.waiting == 20
        gateway.plane.know([one, two])
        made = await asyncio.gather(*created)
        assert {each["metadata"]["name"] for each in made} == {f"c-{number}" for number in range(10)}
        found = {(await each)["status"]["userInfo"]["username"] for each in asked}
        assert found == {f"system:serviceaccount:kube-system:waiting-{gateway.serving.port}"}
        assert await gateway.serve(one, two) == {}
        assert (await robot.request("POST", path, body=review))["status"]

        # The same connections, after it has fallen asleep again.
        await gateway.serve(_asleep(one), two)
        again = asyncio.create_task(admin.list(CONFIG_MAPS, namespace=namespace))
        await eventually(lambda: gateway.wakes, lambda wakes: wakes == ["uid-one", "uid-one"])
        await gateway.serve(one, two)
        assert len((await again).items) >= 10


async def test_who_cannot_be_a_user_wakes_nothing(gateway: Gateway) -> None:
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


async def test_strangers_do_not_learn_which_names_exist(gateway: Gateway) -> None:
    """Control plane one sleeps, two is awake, and three does not exist."""
    await gateway.serve(_asleep(gateway.route("one")), gateway.route("two"))
    claims = {"iss": "https://kubernetes.default.svc.cluster.local", "exp": 1 << 40}
    forged = sign_claims(claims, key=create_signing_key())

    async def answers(rest: str, *headers: str, method: str) -> list[tuple[bytes, list[bytes], bytes]]:
        found = []
        for name in ("one", "two", "three"):
            sent = http1(f"/clusters/{name}/control-plane{rest}", *headers, method=method)
            head, _, body = (await exchange(gateway.serving.port, sent, ca=gateway.ca)).partition(b"\r\n\r\n")
            code, *lines = head.split(b"\r\n")
            told = [line for line in lines if not line.startswith((b"date:", b"audit-id:"))]
            assert len(lines) - len(told) == 2
            found.append((code, sorted(told), body))
        return found

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
    ):
        one, two, three = await answers(rest, *headers, method=method)
        assert one == two == three, (rest, method, headers)
        assert one[0].startswith(b"HTTP/1.1 401")
    assert gateway.wakes == []
    # Nor is a control plane in use by them.
    numbers = await gateway.plane.numbers()
    assert numbers["cluster.uid-two.upstream_rq_total"] == numbers["cluster.uid-two.upstream_rq_401"] == 3
    assert Usage().look(numbers) == set()


async def test_request_gets_the_cause_when_a_person_has_to_act(gateway: Gateway) -> None:
    sleeping = _asleep(gateway.route("one"))
    assert sleeping.asleep is not None
    failed = replace(sleeping.asleep, failed=True, problem="Secret x is damaged: it has no entry sa.key; restore it")
    await gateway.serve(replace(sleeping, asleep=failed))
    sent = http1("/clusters/one/control-plane/api/v1/namespaces", f"Authorization: Bearer {BOOTSTRAP_TOKEN}")
    async with asyncio.timeout(20):
        received = await exchange(gateway.serving.port, sent, ca=gateway.ca)
    head, _, body = received.partition(b"\r\n\r\n")
    assert statuses(received)[0] == 503
    assert b"retry-after" not in head.lower()
    assert "cannot wake: Secret x is damaged: it has no entry sa.key" in json.loads(body)["message"]
    assert set(gateway.wakes) == {"uid-one"}


async def test_a_client_that_goes_waits_no_more(gateway: Gateway, eventually: Callable[..., Any]) -> None:
    await gateway.serve(_asleep(gateway.route("one")))
    sent = http1("/clusters/one/control-plane/api", f"Authorization: Bearer {BOOTSTRAP_TOKEN}")
    request = asyncio.create_task(exchange(gateway.serving.port, sent, ca=gateway.ca))
    await eventually(lambda: gateway.waker.waiting, lambda waiting: waiting == 1)
    request.cancel()
    await eventually(lambda: gateway.waker.waiting, lambda waiting: waiting == 0)


async def test_more_than_so_many_are_told_to_retry(gateway: Gateway, eventually: Callable[..., Any]) -> None:
    await gateway.serve(_asleep(gateway.route("one")), gateway.route("two"))
    sent = http1("/clusters/one/control-plane/api", f"Authorization: Bearer {BOOTSTRAP_TOKEN}")
    requests = [asyncio.create_task(exchange(gateway.serving.port, sent, ca=gateway.ca)) for _ in range(101)]
    done, waiting = await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
    (answer,) = [request.result() for request in done]
    assert statuses(answer) == [429]
    assert b"retry-after: 1" in answer.lower()
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["reason"] == "TooManyRequests"
    # Those who wait take no place from others.
    async with Client(gateway.user("two", "admin", groups=MASTERS)) as other:
        assert (await other.list(NAMESPACES)).items
    await gateway.serve(gateway.route("two"))
    answers = await asyncio.gather(*waiting)
    assert {code for answer in answers for code in statuses(answer)} == {404}


async def test_bodies_of_requests_that_wait_take_little_memory(
    gateway: Gateway, eventually: Callable[..., Any]
) -> None:
    async with Client(gateway.tenants["one"].config) as direct:
        token = await controllers_token(direct, account=f"large-{gateway.serving.port}")
    assert await gateway.serve(_asleep(gateway.route("one"))) == {}
    large = 3 << 20
    path = "/clusters/one/control-plane/api/v1/namespaces/default/configmaps"
    request = http1(path, f"Authorization: Bearer {token}", f"Content-Length: {large}", method="POST")

    (envoy,) = find_processes(gateway.directory.parent / "runtime" / "envoy")
    seen = [0]

    def is_settled() -> bool:
        """Tell whether Envoy reads no more than it has."""
        status = Path(f"/proc/{envoy}/status").read_text()
        seen.append(int(re.findall(r"RssAnon:\s+([0-9]+) kB", status)[0]) << 10)
        return seen[-1] == seen[-2]

    await eventually(is_settled)
    before = seen[-1]
    body = bytes(large)
    sent = [asyncio.create_task(exchange(gateway.serving.port, request + body, ca=gateway.ca)) for _ in range(40)]
    try:
        await eventually(lambda: gateway.waker.waiting, lambda waiting: waiting == len(sent))
        await eventually(is_settled)
        assert seen[-1] - before < len(sent) * _MIB
    finally:
        for task in sent:
            task.cancel()
        await asyncio.wait(sent)
