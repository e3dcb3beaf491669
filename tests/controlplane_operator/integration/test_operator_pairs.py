"""An adopted control plane whose endpoint changes: address and kubeconfig are published as one pair, always."""

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
    """Reads registrations and the Secrets that they name, again and again, as a consumer might at any moment."""

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
            # The registration said this before and after the Secrets were read.
            address = status["resolvedEndpoint"]
            assert [(config.server, config.ca_data) for config in configs] == [(address, self._cas[address])] * 2
            self.seen[address] += 1

    async def _config(self, reference: dict[str, str]) -> ClusterConfig:
        secret = await self._field.client.get(SECRETS, reference["name"], namespace=reference["namespace"])
        return ClusterConfig.from_kubeconfig(base64.b64decode(secret["data"]["kubeconfig"]))


@contextlib.asynccontextmanager
async def listening_in(config: ClusterConfig, *, tls_server: Any) -> AsyncIterator[tuple[ClusterConfig, set[str]]]:
    """A server with a CA of its own that passes everything on to an API server, and notes who it is told to be."""
    shown = set[str]()
    trust = ssl.create_default_context(cadata=(config.ca_data or b"").decode())

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:

        async def pass_on(request: web.BaseRequest) -> web.Response:
            shown.add(request.headers.get("Authorization", "").removeprefix("Bearer "))
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
            yield replace(config, server=served.server, ca_data=served.ca_data), shown


async def test_what_one_api_server_issued_is_shown_to_no_other(field: Any, tenant: Any, tls_server: Any) -> None:
    first = ClusterConfig.load(field.handle.admin_kubeconfig)
    async with listening_in(await owner_of(tenant.administrator), tls_server=tls_server) as (second, shown):
        await field.create("ControlPlaneEndpoint", "way", **await door_to(field, "first", config=first))
        await field.create("ControlPlane", "traveller", mode="Dedicated", endpointRef={"name": "way"})
        await field.becomes("ControlPlane", "traveller", "Reconciled")
        issued = {(await field.tenant("traveller", secret=name)).token for name in _SECRETS}

        way = await door_to(field, "second", config=second)
        await field.client.patch(CONTROL_PLANE_ENDPOINTS, "way", {"spec": way})
        # The other API server has another cluster. It is asked who it is, by its own credentials.
        await field.becomes("ControlPlane", "traveller", "ClusterChanged")
        assert shown
        assert not issued & shown
        assert (await field.get("ControlPlane", "traveller"))["status"]["endpoint"] == first.server
        assert {(await field.tenant("traveller", secret=name)).token for name in _SECRETS} == issued

        await field.client.patch(CONTROL_PLANE_ENDPOINTS, "way", {"spec": await door_to(field, "first", config=first)})
        await field.becomes("ControlPlane", "traveller", "Reconciled")
        await field.client.delete(CONTROL_PLANES, "traveller")
        await field.gone(CONTROL_PLANES, "traveller")
        # So that nobody probes it any more when the server ends.
        await field.client.delete(CONTROL_PLANE_ENDPOINTS, "way")
        await field.gone(CONTROL_PLANE_ENDPOINTS, "way")


async def test_no_registration_ever_names_an_address_with_the_credentials_for_another(
    field: Any, tls_server: Any
) -> None:
    # One cluster at two addresses, each with a CA of its own.
    left = await owner_of(ClusterConfig.load(field.handle.admin_kubeconfig))
    async with listening_in(left, tls_server=tls_server) as (right, _):
        await switch_between({"left": left, "right": right}, field=field)


async def switch_between(servers: dict[str, ClusterConfig], *, field: Any) -> None:
    doors = {name: await door_to(field, name, config=config) for name, config in servers.items()}
    cas = {config.server: config.ca_data for config in servers.values()}
    assert len(set(cas.values())) == 2

    await field.create("ControlPlaneEndpoint", "door", **doors["left"])
    await field.create("ControlPlane", "mover", mode="Dedicated", endpointRef={"name": "door"})
    # Each has a service of its own, so that both are resolved.
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
            found = [(await field.get("ControlPlaneRegistration", each)).get("status", {}) for each in registrations]
            return {status.get("resolvedEndpoint") for status in found}

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
        # Back and forth faster than anybody follows: whatever is passed on the way, the end is where it leads to.
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

    # Where it does not lead anywhere, all stays with the last address that was any good.
    await field.client.patch(CONTROL_PLANE_ENDPOINTS, "door", {"spec": {"endpoint": "https://127.0.0.1:9"}})
    await field.becomes("ControlPlane", "mover", "EndpointUnreachable")
    await all_at("right")
    assert (await field.get("ControlPlane", "mover"))["status"]["endpoint"] == status["endpoint"]
    await lead_to("right")
    await field.becomes("ControlPlane", "mover", "Reconciled")
    # So that nobody probes it any more when the server ends.
    for name in registrations:
        await field.client.delete(CONTROL_PLANE_REGISTRATIONS, name)
        await field.gone(CONTROL_PLANE_REGISTRATIONS, name)
    await field.client.delete(CONTROL_PLANES, "mover")
    await field.gone(CONTROL_PLANES, "mover")
    await field.client.delete(CONTROL_PLANE_ENDPOINTS, "door")
    await field.gone(CONTROL_PLANE_ENDPOINTS, "door")
