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
    """Return the route of control plane `one` after its migration to the API server of `two`."""
    source, target = gateway.route("one"), gateway.route("two")
    return dataclasses.replace(target, key=source.key, cluster_path=source.cluster_path)


class Writer:
    """Creates objects in sequence, and records the acknowledged writes."""

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
        config_maps = (await direct.list(CONFIG_MAPS, namespace=namespace)).items
    return {
        config_map["metadata"]["name"] for config_map in config_maps if config_map["metadata"]["name"].startswith("w-")
    }


async def test_held_changes_continue_at_new_api_server_after_move(
    gateway: Gateway, eventually: Callable[..., Any]
) -> None:
    namespace = f"moving-{gateway.serving.port}"
    for name in ("one", "two"):
        async with Client(gateway.tenants[name].config) as direct:
            await direct.create(NAMESPACES, manifest("v1", "Namespace", namespace))
    route = gateway.route("one")
    async with Client(gateway.tenants["one"].config) as direct:
        token = await controllers_token(direct, account=f"mover-{gateway.serving.port}")
    # Both routes trust the certificate of the user: the route before the move and the route after the move.
    routes = _trusting_both(gateway, route), _trusting_both(gateway, _moved(gateway))
    assert await gateway.serve(routes[0]) == {}
    stop = asyncio.Event()
    async with (
        Client(gateway.user("one", "writer", groups=MASTERS)) as client,
        Client(gateway.config("one", token=token)) as reader,
        Client(gateway.config("one", token=token)) as robot,
    ):
        writer = Writer(client, namespace)
        writer_task = asyncio.create_task(writer.run(stop))
        await eventually(lambda: writer.acknowledged, lambda found: len(found) >= 3)

        assert await gateway.serve(held(routes[0])) == {}
        quiet = await eventually(gateway.plane.quiet)
        assert quiet.keys() == {"uid-one"}
        await eventually(lambda: gateway.waker.waiting)
        token_request = asyncio.create_task(
            robot.create(CONFIG_MAPS, manifest("v1", "ConfigMap", "w-token", namespace=namespace))
        )
        await eventually(lambda: gateway.waker.waiting, lambda waiting: waiting == 2)
        # Reads continue, and so do POST requests that store no data.
        assert (await reader.list(NAMESPACES)).items
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        assert await reader.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=review)
        before = await _names(gateway.tenants["one"].config, namespace)
        assert before == set(writer.acknowledged)

        assert await gateway.serve(routes[1]) == {}
        await eventually(lambda: len(writer.acknowledged), lambda found: found >= len(before) + 3)
        stop.set()
        await writer_task
        assert (await gateway.plane.quiet()) == {}
        # The token is from the former API server, so the new API server may refuse the request.
        with contextlib.suppress(Exception):
            await token_request
    assert await _names(gateway.tenants["one"].config, namespace) == before
    after = await _names(gateway.tenants["two"].config, namespace)
    assert after - {"w-token"} == set(writer.acknowledged) - before


def _trusting_both(gateway: Gateway, route: Route) -> Route:
    assert route.upstream is not None
    assert route.upstream.front_proxy is not None
    trust = b"".join(gateway.tenants[name].authorities.client_trust for name in ("one", "two"))
    front_proxy = dataclasses.replace(route.upstream.front_proxy, client_ca=trust)
    return dataclasses.replace(route, upstream=dataclasses.replace(route.upstream, front_proxy=front_proxy))


async def test_hold_ends_at_its_deadline(gateway: Gateway) -> None:
    async with Client(gateway.tenants["one"].config) as direct:
        token = await controllers_token(direct, account=f"patient-{gateway.serving.port}")
    assert await gateway.serve(held(gateway.route("one"), seconds=1.0)) == {}
    async with Client(gateway.config("one", token=token)) as client:
        name = f"patient-{gateway.serving.port}"
        assert await client.create(CONFIG_MAPS, manifest("v1", "ConfigMap", name, namespace="default"))


async def test_gateway_refuses_unknown_user_before_body_arrives(gateway: Gateway) -> None:
    """A silent request of an unknown user thus delays no move, and keeps no control plane awake."""
    long, upgrade = "Content-Length: 1000", "Connection: upgrade"
    requests = [
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

    answers = await asyncio.gather(*(answered(*arguments) for arguments in requests))
    assert answers == [[401]] * len(requests)
    numbers = await gateway.plane.numbers()
    assert Usage().look(numbers) == set()


async def test_gateway_forwards_body_without_interim_response(gateway: Gateway) -> None:
    async with Client(gateway.tenants["one"].config) as direct:
        token = await controllers_token(direct, account=f"bodies-{gateway.serving.port}")
    body = json.dumps({"metadata": {"name": f"body-{gateway.serving.port}"}}).encode()
    path = "/clusters/one/control-plane/api/v1/namespaces/default/configmaps"
    headers = (f"Authorization: Bearer {token}", "Content-Type: application/json", f"Content-Length: {len(body)}")
    answer = await exchange(gateway.serving.port, http1(path, *headers, method="POST", body=body), ca=gateway.ca)
    assert statuses(answer) == [201]
