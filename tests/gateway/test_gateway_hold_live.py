"""A control plane is held, and moves to another API server, behind a real Envoy."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kplane.gateway.routes import Hold, Route
from kplane.gateway.usage import Usage
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES
from tests.mcm.control_planes import controllers_token, manifest

from .attacker import exchange, http1, statuses
from .conftest import Gateway

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("gateway"), pytest.mark.timeout(300)]

MASTERS = ("system:masters",)


def held(route: Route, *, seconds: float = 60.0) -> Route:
    until = datetime.now(UTC) + timedelta(seconds=seconds)
    return dataclasses.replace(route, held=Hold(until=until, asked=until.isoformat()))


def _moved(gateway: Gateway) -> Route:
    """The control plane `one` at the API server of `two`: where it lives after a migration."""
    one, two = gateway.route("one"), gateway.route("two")
    return dataclasses.replace(two, key=one.key, cluster_path=one.cluster_path)


class Writer:
    """Writes one object after the other, and notes which writes were acknowledged."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self.asked = 0
        self.acknowledged: list[str] = []

    async def run(self, until: asyncio.Event) -> None:
        while not until.is_set():
            name = f"w-{self.asked}"
            self.asked += 1
            await self._client.create(CONFIG_MAPS, manifest("v1", "ConfigMap", name, namespace=self._namespace))
            self.acknowledged.append(name)


async def _names(config: ClusterConfig, namespace: str) -> set[str]:
    async with Client(config) as direct:
        found = (await direct.list(CONFIG_MAPS, namespace=namespace)).items
    return {each["metadata"]["name"] for each in found if each["metadata"]["name"].startswith("w-")}


async def test_changes_wait_and_go_on_where_the_control_plane_lives_then(
    gateway: Gateway, eventually: Callable[..., Any]
) -> None:
    namespace = f"moving-{gateway.serving.port}"
    for name in ("one", "two"):
        async with Client(gateway.tenants[name].config) as direct:
            await direct.create(NAMESPACES, manifest("v1", "Namespace", namespace))
    one = gateway.route("one")
    async with Client(gateway.tenants["one"].config) as direct:
        token = await controllers_token(direct, account=f"mover-{gateway.serving.port}")
    # Its user has a certificate that both API servers' gateways verify: of the one before, and of the one afterwards.
    trusts = _trusting_both(gateway, one), _trusting_both(gateway, _moved(gateway))
    assert await gateway.serve(trusts[0]) == {}
    ended = asyncio.Event()
    async with (
        Client(gateway.user("one", "writer", groups=MASTERS)) as client,
        Client(gateway.config("one", token=token)) as reader,
        Client(gateway.config("one", token=token)) as robot,
    ):
        writer = Writer(client, namespace)
        writing = asyncio.create_task(writer.run(ended))
        await eventually(lambda: writer.acknowledged, lambda found: len(found) >= 3)

        assert await gateway.serve(held(trusts[0])) == {}
        quiet = await eventually(gateway.plane.quiet)
        assert quiet.keys() == {"uid-one"}
        await eventually(lambda: gateway.waker.waiting)
        waits = asyncio.create_task(
            robot.create(CONFIG_MAPS, manifest("v1", "ConfigMap", "w-token", namespace=namespace))
        )
        await eventually(lambda: gateway.waker.waiting, lambda waiting: waiting == 2)
        # What reads goes on, and so do changes that change nothing.
        assert (await reader.list(NAMESPACES)).items
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        assert await reader.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=review)
        before = await _names(gateway.tenants["one"].config, namespace)
        assert before == set(writer.acknowledged)

        assert await gateway.serve(trusts[1]) == {}
        await eventually(lambda: len(writer.acknowledged), lambda found: found >= len(before) + 3)
        ended.set()
        await writing
        assert (await gateway.plane.quiet()) == {}
        # The token is of the API server before; what counts is that the request came to the other one.
        with contextlib.suppress(Exception):
            await waits
    assert await _names(gateway.tenants["one"].config, namespace) == before
    after = await _names(gateway.tenants["two"].config, namespace)
    assert after - {"w-token"} == set(writer.acknowledged) - before


def _trusting_both(gateway: Gateway, route: Route) -> Route:
    assert route.upstream is not None
    assert route.upstream.front_proxy is not None
    trust = b"".join(gateway.tenants[name].authorities.client_trust for name in ("one", "two"))
    front_proxy = dataclasses.replace(route.upstream.front_proxy, client_ca=trust)
    return dataclasses.replace(route, upstream=dataclasses.replace(route.upstream, front_proxy=front_proxy))


async def test_a_hold_ends_by_itself(gateway: Gateway) -> None:
    async with Client(gateway.tenants["one"].config) as direct:
        token = await controllers_token(direct, account=f"patient-{gateway.serving.port}")
    assert await gateway.serve(held(gateway.route("one"), seconds=1.0)) == {}
    async with Client(gateway.config("one", token=token)) as client:
        name = f"patient-{gateway.serving.port}"
        assert await client.create(CONFIG_MAPS, manifest("v1", "ConfigMap", name, namespace="default"))


async def test_gateway_refuses_unknown_user_before_the_body(gateway: Gateway) -> None:
    """So a silent request of anybody holds up no move, and keeps no control plane awake."""
    long, upgrade = "Content-Length: 1000", "Connection: upgrade"
    silent = [
        ("POST", "api/v1/namespaces/default/configmaps", long),
        ("POST", "api/v1/namespaces/default/configmaps", "Transfer-Encoding: chunked"),
        ("POST", "api/v1/namespaces/default/configmaps", long, upgrade, "Upgrade: websocket"),
        ("DELETE", "api/v1/namespaces/default/configmaps/x", long),
        ("GET", "api/v1/namespaces/default/configmaps", long),
        ("POST", "apis/authentication.k8s.io/v1/tokenreviews", long),
        ("POST", "api/v1/namespaces/default/services/x/proxy/upload", long),
        ("POST", "api/v1/namespaces/default/pods/x/exec?command=id", long, upgrade, "Upgrade: SPDY/3.1"),
    ]

    async def answered(method: str, path: str, *headers: str) -> list[int]:
        request = http1(f"/clusters/one/control-plane/{path}", "Authorization: Bearer x", *headers, method=method)
        return statuses(await exchange(gateway.serving.port, request, ca=gateway.ca, seconds=10))

    answers = await asyncio.gather(*(answered(*each) for each in silent))
    assert answers == [[401]] * len(silent)
    numbers = await gateway.plane.numbers()
    assert Usage().look(numbers) == set()


async def test_gateway_passes_on_bodies_without_an_interim_answer(gateway: Gateway) -> None:
    async with Client(gateway.tenants["one"].config) as direct:
        token = await controllers_token(direct, account=f"bodies-{gateway.serving.port}")
    body = json.dumps({"metadata": {"name": f"body-{gateway.serving.port}"}}).encode()
    path = "/clusters/one/control-plane/api/v1/namespaces/default/configmaps"
    said = (f"Authorization: Bearer {token}", "Content-Type: application/json", f"Content-Length: {len(body)}")
    answer = await exchange(gateway.serving.port, http1(path, *said, method="POST", body=body), ca=gateway.ca)
    assert statuses(answer) == [201]
