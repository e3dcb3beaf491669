"""Two control planes of one clusterPath: an endpoint that is led to the other's API server gets nothing of it."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest

from benchmarks.surroundings import shared_address, start_api_server
from kplane.controlplane_operator.kinds import CONTROL_PLANE_ENDPOINTS, CONTROL_PLANES
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import NAMESPACES
from kplane.workloads import ProcessRuntime

from .conftest import door_to

pytestmark = pytest.mark.integration

_SECRETS = ("kubeconfigSecretRef", "controllersSecretRef")


@pytest.mark.slow
async def test_an_endpoint_that_is_led_to_a_path_of_another_one_gives_nobody_its_data(
    mortal_field: Any, tmp_path: Path
) -> None:
    """Two of one clusterPath at two servers, and the older one's endpoint is edited to the server of the younger."""
    field, running = mortal_field
    async with contextlib.AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(ProcessRuntime(tmp_path / "runtime", programs=field.handle.programs))
        api_server = await start_api_server(runtime, "theirs", directory=tmp_path)
        servers = {
            "left": api_server.administrator(),
            "right": ClusterConfig.load(field.handle.admin_kubeconfig),
        }
        doors = {}
        for name, backend in servers.items():
            (tmp_path / name).mkdir()
            address = await stack.enter_async_context(shared_address(backend, directory=tmp_path / name))
            doors[name] = await door_to(field, name, config=address)
        operator = await stack.enter_async_context(contextlib.AsyncExitStack())
        await operator.enter_async_context(running())
        urls = {name: f"{door['endpoint']}/clusters/p/control-plane" for name, door in doors.items()}
        for name, side in (("older", "left"), ("younger", "right")):
            await field.create("ControlPlaneEndpoint", name, **doors[side])
            virtual = {"clusterPath": "p"}
            await field.create("ControlPlane", name, virtual=virtual, endpointRef={"name": name})
            found = await field.becomes("ControlPlane", name, "Reconciled")
            assert found["status"]["endpoint"] == urls[side]

        async def published() -> dict[str, ClusterConfig]:
            names = itertools.product(("older", "younger"), _SECRETS)
            return {f"{name} {secret}": await field.tenant(name, secret=secret) for name, secret in names}

        before = await published()
        await field.client.patch(CONTROL_PLANE_ENDPOINTS, "older", {"spec": doors["right"]})
        await field.becomes("ControlPlane", "older", "ClusterPathInUse")
        # Nor does an operator that has to know it from what is written down.
        await operator.aclose()
        await field.client.patch(CONTROL_PLANE_ENDPOINTS, "older", {"metadata": {"labels": {"looked": "at"}}})
        await operator.enter_async_context(running())
        await field.create("ControlPlane", "later", virtual={"clusterPath": "p"}, endpointRef={"name": "younger"})
        for name, reason in (("later", "ClusterPathInUse"), ("older", "ClusterPathInUse"), ("younger", "Reconciled")):
            await field.becomes("ControlPlane", name, reason)
        assert await published() == before
        for config in before.values():
            async with Client(config, field_manager="kplane") as client:
                await client.list(NAMESPACES)
        assert (await field.get("ControlPlane", "older"))["status"]["endpoint"] == urls["left"]

        # Its end is not that of the one whose server it was led to, whose credentials the endpoint has now.
        await field.client.delete(CONTROL_PLANES, "older")
        await field.gone(CONTROL_PLANES, "older")
        for secret in _SECRETS:
            await field.eventually(lambda config=before[f"older {secret}"]: field.refuses(config))
        for secret in _SECRETS:
            async with Client(before[f"younger {secret}"], field_manager="kplane") as client:
                await client.list(NAMESPACES)

        # When the path is free, who waits for it gets it.
        await field.client.delete(CONTROL_PLANES, "younger")
        await field.gone(CONTROL_PLANES, "younger")
        found = await field.becomes("ControlPlane", "later", "Reconciled")
        assert found["status"]["endpoint"] == urls["right"]
        await field.client.delete(CONTROL_PLANES, "later")
        await field.gone(CONTROL_PLANES, "later")
