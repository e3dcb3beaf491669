"""Two control planes with the same clusterPath: an endpoint moved to the other's API server gets no access."""

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
async def test_endpoint_moved_to_path_of_another_control_plane_is_refused(mortal_field: Any, tmp_path: Path) -> None:
    """The older control plane's endpoint is changed to the server of the younger, which has the same clusterPath."""
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
            control_plane = await field.becomes("ControlPlane", name, "Reconciled")
            assert control_plane["status"]["endpoint"] == urls[side]

        async def published() -> dict[str, ClusterConfig]:
            names = itertools.product(("older", "younger"), _SECRETS)
            return {f"{name} {secret}": await field.tenant(name, secret=secret) for name, secret in names}

        before = await published()
        await field.client.patch(CONTROL_PLANE_ENDPOINTS, "older", {"spec": doors["right"]})
        await field.becomes("ControlPlane", "older", "ClusterPathInUse")
        # A restarted operator refuses the change too, based on the stored objects.
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

        # The deletion of the older control plane does not revoke the credentials of the younger at the same server.
        await field.client.delete(CONTROL_PLANES, "older")
        await field.gone(CONTROL_PLANES, "older")
        for secret in _SECRETS:
            await field.eventually(lambda config=before[f"older {secret}"]: field.refuses(config))
        for secret in _SECRETS:
            async with Client(before[f"younger {secret}"], field_manager="kplane") as client:
                await client.list(NAMESPACES)

        # The waiting control plane gets the path when the path is free.
        await field.client.delete(CONTROL_PLANES, "younger")
        await field.gone(CONTROL_PLANES, "younger")
        control_plane = await field.becomes("ControlPlane", "later", "Reconciled")
        assert control_plane["status"]["endpoint"] == urls["right"]
        await field.client.delete(CONTROL_PLANES, "later")
        await field.gone(CONTROL_PLANES, "later")
