"""An operator in the test's own loop, on a real management cluster, with the operator's own identity."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from benchmarks.surroundings import shared_address
from controlplane_operator.kinds import (
    CONTROL_PLANE_CLASSES,
    CONTROL_PLANE_ENDPOINTS,
    CONTROL_PLANE_REGISTRATIONS,
    CONTROL_PLANES,
)
from controlplane_operator.operator import run_operator
from controlplane_operator.provisioning import McmProgram
from controlplane_operator.settings import EtcdAt, Settings
from embedded.handle import Handle
from provider import NAMESPACES, Client, ClusterConfig, Forbidden, NotFound, Resource, Unauthorized
from workloads import end_processes

_T = TypeVar("_T")

KINDS = {
    resource.kind: resource
    for resource in (CONTROL_PLANES, CONTROL_PLANE_CLASSES, CONTROL_PLANE_ENDPOINTS, CONTROL_PLANE_REGISTRATIONS)
}


@dataclass(frozen=True, slots=True)
class Field:
    """What a test works with: the management cluster as its administrator, and where the operator keeps its state."""

    client: Client
    handle: Handle
    state: Path
    eventually: Callable[..., Any]
    url: str = ""
    """Of the operator's health and metrics."""

    async def create(self, kind: str, name: str, **spec: Any) -> dict[str, Any]:
        resource = KINDS[kind]
        body = {"apiVersion": resource.api_version, "kind": kind, "metadata": {"name": name}, "spec": spec}
        return await self.client.create(resource, body)

    async def get(self, kind: str, name: str) -> dict[str, Any]:
        return await self.client.get(KINDS[kind], name)

    async def reason(self, kind: str, name: str, condition: str = "Ready") -> str:
        conditions = (await self.get(kind, name)).get("status", {}).get("conditions", [])
        return next((item["reason"] for item in conditions if item["type"] == condition), "")

    async def becomes(self, kind: str, name: str, reason: str, *, timeout: float = 120.0) -> dict[str, Any]:
        async def told() -> str:
            return await self.reason(kind, name)

        await self.eventually(told, lambda found: found == reason, timeout=timeout)
        return await self.get(kind, name)

    async def refuses(self, config: ClusterConfig) -> bool:
        """Tell whether a control plane lets this identity do nothing."""
        async with Client(config) as client:
            try:
                await client.list(NAMESPACES)
            except (Unauthorized, Forbidden):
                return True
        return False

    async def lets_in(self, *configs: ClusterConfig) -> None:
        """Wait until control planes let in who has just been given rights: an API server hears of a binding later."""
        for config in configs:
            async with Client(config) as client:
                await self.eventually(lambda client=client: client.list(NAMESPACES))

    async def settles(self, probe: Callable[[], Awaitable[_T]], *, seconds: float = 3.0) -> _T:
        """Return what `probe` gives once that has been the same for so long."""
        now = asyncio.get_running_loop().time
        last, since = await probe(), now()

        async def is_still() -> bool:
            nonlocal last, since
            if (found := await probe()) != last:
                last, since = found, now()
            return now() - since >= seconds

        await self.eventually(is_still, timeout=120.0)
        return last

    async def gone(self, resource: Resource, name: str, *, timeout: float = 120.0) -> None:
        async def absent() -> bool | dict[str, Any]:
            try:
                return (await self.client.get(resource, name)).get("status", {"still": "there"})
            except NotFound:
                return True

        await self.eventually(absent, lambda found: found is True, timeout=timeout)

    async def tenant(self, name: str, *, secret: str = "kubeconfigSecretRef") -> ClusterConfig:
        import base64

        from provider import SECRETS

        reference = (await self.get("ControlPlane", name))["status"][secret]
        found = await self.client.get(SECRETS, reference["name"], namespace=reference["namespace"])
        return ClusterConfig.from_kubeconfig(base64.b64decode(found["data"]["kubeconfig"]))


@contextlib.asynccontextmanager
async def running_operator(
    handle: Handle, state: Path, *, port: int, shared_etcd: bool = True, dedicated_mcm: McmProgram | None = None
) -> AsyncIterator[str]:
    """Run the operator within; gives the URL of its health and metrics, at this port."""
    etcd = EtcdAt(handle.tenants_etcd.endpoint, handle.tenants_etcd_credentials)
    stop = asyncio.Event()
    settings = Settings(
        kubeconfig=handle.operator_kubeconfig,
        state_directory=state,
        program_directories=handle.programs,
        listen_host="127.0.0.1",
        listen_port=port,
        shared_etcd=etcd if shared_etcd else None,
        dedicated_mcm=dedicated_mcm,
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(run_operator(settings, stop=stop), name="operator under test")
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            stop.set()


@pytest.fixture
async def field(
    api_server: Handle, eventually: Callable[..., Any], hold_port: Callable[[], int]
) -> AsyncIterator[Field]:
    """A management cluster with our operator running; everything that a test made is deleted afterwards."""
    state = Path(tempfile.mkdtemp(prefix="kplane-operator-"))
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig)) as client:
        made = Field(client, api_server, state, eventually)
        try:
            async with running_operator(api_server, state, port=hold_port()) as url:
                try:
                    yield replace(made, url=url)
                finally:
                    await _clean(made)
        finally:
            await end_processes(state, grace_seconds=2.0)
            shutil.rmtree(state, ignore_errors=True)


@pytest.fixture
async def mortal_field(
    api_server: Handle, eventually: Callable[..., Any], hold_port: Callable[[], int]
) -> AsyncIterator[tuple[Field, Callable[..., contextlib.AbstractAsyncContextManager[str]]]]:
    """The same without an operator, and what runs one for a while; what it runs goes on without it."""
    state = Path(tempfile.mkdtemp(prefix="kplane-operator-"))
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig)) as client:
        made = Field(client, api_server, state, eventually)
        try:
            yield made, lambda **settings: running_operator(api_server, state, port=hold_port(), **settings)
            async with running_operator(api_server, state, port=hold_port()):
                await _clean(made)
        finally:
            await end_processes(state, grace_seconds=2.0)
            shutil.rmtree(state, ignore_errors=True)


@pytest.fixture
async def field_without_etcd(
    api_server: Handle, tmp_path: Path, eventually: Callable[..., Any], hold_port: Callable[[], int]
) -> AsyncIterator[Field]:
    """The same with an operator that was given no shared etcd."""
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig)) as client:
        made = Field(client, api_server, tmp_path, eventually)
        async with running_operator(api_server, tmp_path, port=hold_port(), shared_etcd=False):
            yield made


@pytest.fixture
async def shared(field: Field, tmp_path: Path) -> AsyncIterator[ClusterConfig]:
    """The management cluster's API server below each /clusters/<path>/control-plane, for many that adopt it."""
    async with shared_address(ClusterConfig.load(field.handle.admin_kubeconfig), directory=tmp_path) as config:
        yield config
        # While there is an address to take leave through.
        await _clean(field)


async def _clean(field: Field) -> None:
    # Adopted control planes first, while the API servers that they lead to still run.
    control_planes = (await field.client.list(CONTROL_PLANES)).items
    for adopted in (True, False):
        chosen = [obj["metadata"]["name"] for obj in control_planes if ("endpointRef" in obj["spec"]) is adopted]
        for name in chosen:
            with contextlib.suppress(NotFound):
                await field.client.delete(CONTROL_PLANES, name)
        for name in chosen:
            await field.gone(CONTROL_PLANES, name)
    for resource in (CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANE_ENDPOINTS, CONTROL_PLANE_CLASSES):
        for obj in (await field.client.list(resource)).items:
            with contextlib.suppress(NotFound):
                await field.client.delete(resource, obj["metadata"]["name"])
