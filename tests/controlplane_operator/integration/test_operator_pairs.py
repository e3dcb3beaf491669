"""An adopted control plane whose endpoint changes: address and kubeconfig are always published as a pair."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from kplane.controlplane_operator.kinds import CONTROL_PLANE_ENDPOINTS, CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANES
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import NAMESPACES, SECRETS

from .conftest import door_to, owner_of

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

_SECRETS = ("kubeconfigSecretRef", "controllersSecretRef")


class Watcher:
    """Reads registrations and their Secrets in a loop, as a consumer may do at any time."""

    def __init__(self, field: Any, *, cas: dict[str, bytes | None]) -> None:
        self._field = field
        self._cas = cas
        self.seen = Counter[str]()

    async def run(self, registration: str) -> None:
        while True:
            before = await self._field.get("ControlPlaneRegistration", registration)
            status = before.get("status", {})
            if not status.get("ready"):
                await asyncio.sleep(0.005)
                continue
            configs = [
                await self._config(status[reference])
                for reference in ("resolvedKubeconfigSecretRef", "resolvedControllersSecretRef")
            ]
            after = await self._field.get("ControlPlaneRegistration", registration)
            if after["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]:
                continue
            # The registration did not change while the Secrets were read.
            address = status["resolvedEndpoint"]
            assert [(config.server, config.ca_data) for config in configs] == [(address, self._cas[address])] * 2
            self.seen[address] += 1

    async def _config(self, reference: dict[str, str]) -> ClusterConfig:
        secret = await self._field.client.get(SECRETS, reference["name"], namespace=reference["namespace"])
        return ClusterConfig.from_kubeconfig(base64.b64decode(secret["data"]["kubeconfig"]))


@contextlib.asynccontextmanager
async def listening_in(config: ClusterConfig, *, tls_server: Any) -> AsyncIterator[tuple[ClusterConfig, set[str]]]:
    """Server with its own CA that forwards all requests to an API server, and records their bearer tokens."""
    tokens = set[str]()
    trust = ssl.create_default_context(cadata=(config.ca_data or b"").decode())

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:

        async def pass_on(request: web.BaseRequest) -> web.Response:
            tokens.add(request.headers.get("Authorization", "").removeprefix("Bearer "))
            headers = {
                name: request.headers[name]
                for name in ("Authorization", "Content-Type", "Accept")
                if name in request.headers
            }
            url = f"{config.server}{request.raw_path}"
            body = await request.read() or None
            async with session.request(request.method, url, data=body, headers=headers) as answer:
                return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)

        async with tls_server(pass_on) as served:
            yield replace(config, server=served.server, ca_data=served.ca_data), tokens


async def test_issued_tokens_are_not_sent_to_another_api_server(field: Any, tenant: Any, tls_server: Any) -> None:
    first = ClusterConfig.load(field.handle.admin_kubeconfig)
    async with listening_in(await owner_of(tenant.administrator), tls_server=tls_server) as (second, sent_tokens):
        await field.create("ControlPlaneEndpoint", "way", **await door_to(field, "first", config=first))
        await field.create("ControlPlane", "traveller", mode="Dedicated", endpointRef={"name": "way"})
        await field.becomes("ControlPlane", "traveller", "Reconciled")
        issued = {(await field.tenant("traveller", secret=name)).token for name in _SECRETS}

        second_spec = await door_to(field, "second", config=second)
        await field.client.patch(CONTROL_PLANE_ENDPOINTS, "way", {"spec": second_spec})
        # The second endpoint is another cluster. The operator reads the uid with the endpoint's own credentials.
        await field.becomes("ControlPlane", "traveller", "ClusterChanged")
        assert sent_tokens
        assert not issued & sent_tokens
        assert (await field.get("ControlPlane", "traveller"))["status"]["endpoint"] == first.server
        assert {(await field.tenant("traveller", secret=name)).token for name in _SECRETS} == issued

        await field.client.patch(CONTROL_PLANE_ENDPOINTS, "way", {"spec": await door_to(field, "first", config=first)})
        await field.becomes("ControlPlane", "traveller", "Reconciled")
        await field.client.delete(CONTROL_PLANES, "traveller")
        await field.gone(CONTROL_PLANES, "traveller")
        # The operator must not probe the endpoint after its server has ended.
        await field.client.delete(CONTROL_PLANE_ENDPOINTS, "way")
        await field.gone(CONTROL_PLANE_ENDPOINTS, "way")


async def test_registration_publishes_address_and_credentials_as_a_pair(field: Any, tls_server: Any) -> None:
    # The cluster has two addresses, each with its own CA.
    direct = await owner_of(ClusterConfig.load(field.handle.admin_kubeconfig))
    async with listening_in(direct, tls_server=tls_server) as (relayed, _):
        await switch_between({"left": direct, "right": relayed}, field=field)


async def switch_between(servers: dict[str, ClusterConfig], *, field: Any) -> None:
    doors = {name: await door_to(field, name, config=config) for name, config in servers.items()}
    cas = {config.server: config.ca_data for config in servers.values()}
    assert len(set(cas.values())) == 2

    await field.create("ControlPlaneEndpoint", "door", **doors["left"])
    await field.create("ControlPlane", "mover", mode="Dedicated", endpointRef={"name": "door"})
    # Both resolve, because each registration has its own service.
    registrations: dict[str, dict[str, Any]] = {
        "plain": {"services": ["Controllers"]},
        "by-door": {"services": ["Scheduler"], "endpointRef": {"name": "door"}},
    }
    for name, spec in registrations.items():
        await field.create("ControlPlaneRegistration", name, controlPlaneRef={"name": "mover"}, **spec)

    async def lead_to(name: str) -> None:
        await field.client.patch(CONTROL_PLANE_ENDPOINTS, "door", {"spec": doors[name]})

    async def all_at(name: str) -> None:
        async def resolved() -> set[str | None]:
            statuses = [
                (await field.get("ControlPlaneRegistration", registration)).get("status", {})
                for registration in registrations
            ]
            return {status.get("resolvedEndpoint") for status in statuses}

        await field.eventually(resolved, lambda urls: urls == {servers[name].server}, timeout=120.0)

    await all_at("left")
    watcher = Watcher(field, cas=cas)
    async with asyncio.TaskGroup() as watching:
        tasks = [watching.create_task(watcher.run(name)) for name in registrations]
        for name in ("right", "left", "right", "left"):
            await lead_to(name)
            await all_at(name)
            enough = watcher.seen[servers[name].server] + 6
            await field.eventually(
                lambda address=servers[name].server: watcher.seen[address], lambda seen, enough=enough: seen >= enough
            )
        # The changes are faster than the operator. The published state converges on the last address.
        for name in ("right", "left", "right", "left", "right"):
            await lead_to(name)
            await asyncio.sleep(0.05)
        await all_at("right")
        for task in tasks:
            task.cancel()
    assert min(watcher.seen.values()) > 10
    assert set(watcher.seen) == set(cas)

    async with Client(await field.tenant("mover", secret="controllersSecretRef"), field_manager="kplane") as client:
        await client.list(NAMESPACES)
    status = (await field.get("ControlPlane", "mover"))["status"]
    assert status["endpoint"] == servers["right"].server

    # An unreachable address leaves the last good address published.
    await field.client.patch(CONTROL_PLANE_ENDPOINTS, "door", {"spec": {"endpoint": "https://127.0.0.1:9"}})
    await field.becomes("ControlPlane", "mover", "EndpointUnreachable")
    await all_at("right")
    assert (await field.get("ControlPlane", "mover"))["status"]["endpoint"] == status["endpoint"]
    await lead_to("right")
    await field.becomes("ControlPlane", "mover", "Reconciled")
    # The operator must not probe the endpoint after its server has ended.
    for name in registrations:
        await field.client.delete(CONTROL_PLANE_REGISTRATIONS, name)
        await field.gone(CONTROL_PLANE_REGISTRATIONS, name)
    await field.client.delete(CONTROL_PLANES, "mover")
    await field.gone(CONTROL_PLANES, "mover")
    await field.client.delete(CONTROL_PLANE_ENDPOINTS, "door")
    await field.gone(CONTROL_PLANE_ENDPOINTS, "door")
