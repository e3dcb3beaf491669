"""Two gateways before one control plane, of which one hears of everything later."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from kplane.api import ControlPlane, is_true
from kplane.binaries.programs import Binaries
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.provider import ApiError, Client, ClusterConfig, Event, Informer, ProviderError
from kplane.provider.client.resources import NAMESPACES

from .behind_gateway import external_config
from .lagging_gateway import LaggingGateway, lagging_gateway
from .moving import Mover, moving_cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mover(
    binaries: Binaries, eventually: Callable[..., Any], namespaces_go_at_once: Callable[..., Any]
) -> AsyncIterator[Mover]:
    async with moving_cluster(
        binaries, name="mover", eventually=eventually, namespaces_go_at_once=namespaces_go_at_once
    ) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def lagging(
    mover: Mover, tmp_path: Path, hold_port: Callable[[], int], eventually: Callable[..., Any]
) -> AsyncIterator[LaggingGateway]:
    async with lagging_gateway(mover.cluster.handle, tmp_path, hold_port=hold_port, lag_seconds=0.0) as made:
        await eventually(made.process.ready)
        made.lag_seconds = 1.0
        yield made


async def _code(config: ClusterConfig) -> int | str:
    async with Client(config) as client:
        try:
            await client.list(NAMESPACES)
        except ApiError as error:
            return error.status
        except ProviderError as error:
            return str(error)
        return 200


async def _seen(client: Client, name: str, accept: Callable[[ControlPlane], bool]) -> None:
    """Return at once when an event makes this true."""
    found = asyncio.Event()

    def look(event: Event) -> None:
        if event.kind != "DELETED" and accept(ControlPlane.model_validate(event.object)):
            found.set()

    informer = Informer(client, CONTROL_PLANES, name=name)
    informer.add_handler(look)
    informer.start()
    try:
        async with asyncio.timeout(90):
            await found.wait()
    finally:
        await informer.aclose()


async def test_ready_control_plane_is_served_by_every_gateway(mover: Mover, lagging: LaggingGateway) -> None:
    client, name = mover.cluster.client, "globex"
    for start in ("OnDemand", "Always"):
        spec = {"deletionPolicy": "Destroy", "virtual": {"start": start}}
        await client.create(CONTROL_PLANES, {"metadata": {"name": f"{name}-{start.lower()}"}, "spec": spec})
        await _seen(client, f"{name}-{start.lower()}", lambda found: is_true(found.status.conditions, "Ready"))
        through = await external_config(client, f"{name}-{start.lower()}")
        assert await asyncio.gather(_code(lagging.config(through)), _code(through)) == [200, 200], start

    # Another address is published when every gateway serves it.
    await client.patch(CONTROL_PLANES, f"{name}-always", {"spec": {"endpointStyle": "HostName"}})
    host = f"{name}-always.localhost"
    await _seen(
        client, f"{name}-always", lambda found: any(host in (each.url or "") for each in found.status.endpoints)
    )
    named = await external_config(client, f"{name}-always")
    gateway = urlsplit(str(mover.cluster.handle.gateway_url)).geturl()
    # Not every resolver knows names below localhost.
    by_host = dataclasses.replace(named, server=gateway, tls_server_name=host)
    assert await asyncio.gather(_code(lagging.config(by_host)), _code(by_host)) == [200, 200]
