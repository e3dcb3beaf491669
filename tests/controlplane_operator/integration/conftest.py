"""An operator in the test's own loop, on a real management cluster, with the operator's own identity."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import pytest_asyncio

from benchmarks.surroundings import free_port, open_namespace, shared_address
from kplane.api.configuration import HostPort
from kplane.api.names import ALLOW_ENDPOINT_LABEL
from kplane.components.mcm import McmProgram
from kplane.controlplane_operator.app import run_operator
from kplane.controlplane_operator.backends import adopted as adopted_backend
from kplane.controlplane_operator.config import OperatorConfig
from kplane.controlplane_operator.endpoints import reconciler as control_plane_endpoint
from kplane.controlplane_operator.kinds import (
    CONTROL_PLANE_CLASSES,
    CONTROL_PLANE_ENDPOINTS,
    CONTROL_PLANE_REGISTRATIONS,
    CONTROL_PLANE_SNAPSHOTS,
    CONTROL_PLANES,
)
from kplane.controlplane_operator.tenant import client as tenant_calls
from kplane.embedded.handle import Handle
from kplane.provider import Client, ClusterConfig, NotFound, Resource
from kplane.provider.client.resources import CLUSTER_ROLE_BINDINGS, NAMESPACES, SECRETS, SERVICE_ACCOUNTS
from kplane.provider.errors import Forbidden, Unauthorized
from kplane.workloads import end_processes

_T = TypeVar("_T")

KINDS = {
    resource.kind: resource
    for resource in (
        CONTROL_PLANES,
        CONTROL_PLANE_CLASSES,
        CONTROL_PLANE_ENDPOINTS,
        CONTROL_PLANE_REGISTRATIONS,
        CONTROL_PLANE_SNAPSHOTS,
    )
}


def reason_of(obj: dict[str, Any], condition: str = "Ready") -> str:
    conditions = obj.get("status", {}).get("conditions", [])
    return next((item["reason"] for item in conditions if item["type"] == condition), "")


@dataclass(frozen=True, slots=True)
class Field:
    """Tools of a test: a client of the management cluster's administrator, and the operator's state directory."""

    client: Client
    handle: Handle
    state: Path
    eventually: Callable[..., Any]
    url: str = ""
    """Base URL of the operator's health and metrics endpoints."""

    async def create(self, kind: str, name: str, **spec: Any) -> dict[str, Any]:
        resource = KINDS[kind]
        body = {"apiVersion": resource.api_version, "kind": kind, "metadata": {"name": name}, "spec": spec}
        return await self.client.create(resource, body)

    async def get(self, kind: str, name: str) -> dict[str, Any]:
        return await self.client.get(KINDS[kind], name)

    async def reason(self, kind: str, name: str, condition: str = "Ready") -> str:
        return reason_of(await self.get(kind, name), condition)

    async def becomes(self, kind: str, name: str, reason: str, *, timeout: float = 120.0) -> dict[str, Any]:
        """Return the object as read when condition Ready had this reason. The reason may change right after."""
        return await self.eventually(
            lambda: self.get(kind, name), lambda found: reason_of(found) == reason, timeout=timeout
        )

    async def refuses(self, config: ClusterConfig) -> bool:
        """Return whether the control plane refuses this identity a list of Namespaces."""
        async with Client(config, field_manager="kplane") as client:
            try:
                await client.list(NAMESPACES)
            except (Unauthorized, Forbidden):
                return True
        return False

    async def lets_in(self, *configs: ClusterConfig) -> None:
        """Wait until the control planes accept these identities. API servers observe new bindings with a delay."""
        for config in configs:
            async with Client(config, field_manager="kplane") as client:
                await self.eventually(lambda client=client: client.list(NAMESPACES))

    async def settles(self, probe: Callable[[], Awaitable[_T]], *, seconds: float = 1.5) -> _T:
        """Return the result of `probe` once the result has not changed for `seconds`."""
        now = asyncio.get_running_loop().time
        last, since = await probe(), now()

        async def is_still() -> bool:
            nonlocal last, since
            if (value := await probe()) != last:
                last, since = value, now()
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
        reference = (await self.get("ControlPlane", name))["status"][secret]
        kubeconfig_secret = await self.client.get(SECRETS, reference["name"], namespace=reference["namespace"])
        return ClusterConfig.from_kubeconfig(base64.b64decode(kubeconfig_secret["data"]["kubeconfig"]))


@contextlib.asynccontextmanager
async def running_operator(
    handle: Handle,
    state: Path,
    *,
    port: int,
    shared_etcd: bool = True,
    dedicated_mcm: McmProgram | None = None,
    snapshots: Mapping[str, Any] | None = None,
) -> AsyncIterator[str]:
    """Run the operator and yield the URL of its health and metrics endpoints at `port`.

    The operator may read Secrets of namespace default.
    """
    async with Client(ClusterConfig.load(handle.admin_kubeconfig), field_manager="kplane") as admin:
        await open_namespace(admin)
    stop = asyncio.Event()
    settings = OperatorConfig(
        kubeconfig=handle.operator_kubeconfig,
        state_dir=state,
        programs_dir=handle.programs,
        listen=HostPort("127.0.0.1", port),
        shared_etcd_endpoint=handle.tenants_etcd.endpoint if shared_etcd else None,
        shared_etcd_credentials=handle.tenants_etcd_credentials if shared_etcd else None,
        mcm_program=Path(dedicated_mcm.program) if dedicated_mcm is not None else None,
        mcm_arg=tuple(dedicated_mcm.args) if dedicated_mcm is not None else (),
        # The operator runs in the test process, and an operator that loses its lease ends.
        # These durations keep the lease on a busy machine.
        leader_elect_lease_seconds=30,
        leader_elect_renew_deadline_seconds=25,
        **(snapshots or {}),
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(run_operator(settings, stop=stop), name="operator under test")
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            stop.set()


@contextlib.asynccontextmanager
async def _field(handle: Handle, eventually: Callable[..., Any], namespaces_go_at_once: Any) -> AsyncIterator[Field]:
    state = Path(tempfile.mkdtemp(prefix="kplane-operator-"))
    config = ClusterConfig.load(handle.admin_kubeconfig)
    async with namespaces_go_at_once(config), Client(config, field_manager="kplane") as client:
        new_field = Field(client, handle, state, eventually)
        try:
            async with running_operator(handle, state, port=free_port()) as url:
                try:
                    yield replace(new_field, url=url)
                finally:
                    await clean(new_field)
        finally:
            await end_processes(state, grace_seconds=2.0)
            shutil.rmtree(state, ignore_errors=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def field(api_server: Handle, eventually: Callable[..., Any], namespaces_go_at_once: Any) -> AsyncIterator[Field]:
    """Management cluster with a running operator, shared by all tests of a module. Each test uses its own object names.

    A module that uses this fixture needs the mark `asyncio(loop_scope="module")`. The fixture deletes all objects of
    the tests at the end.
    """
    async with _field(api_server, eventually, namespaces_go_at_once) as new_field:
        yield new_field


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(field: Field) -> dict[str, Any]:
    """Virtual control plane with its own API server, which all tests of a module share and none may delete."""
    await field.create("ControlPlane", "house", deletionPolicy="Destroy")
    return await field.becomes("ControlPlane", "house", "Reconciled")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeouts of calls to silent API servers from five seconds to two."""
    monkeypatch.setattr(tenant_calls, "_CALL_SECONDS", 2.0)
    monkeypatch.setattr(control_plane_endpoint, "_PROBE_SECONDS", 2.0)
    monkeypatch.setattr(adopted_backend, "_REVOKE_SECONDS", 1.0)


@pytest.fixture
async def own_field(
    api_server: Handle, eventually: Callable[..., Any], namespaces_go_at_once: Any
) -> AsyncIterator[Field]:
    """Like `field`, for a single test. The operator starts after patches of fixtures that the test requests earlier."""
    async with _field(api_server, eventually, namespaces_go_at_once) as new_field:
        yield new_field


@pytest.fixture
async def mortal_field(
    api_server: Handle, eventually: Callable[..., Any], hold_port: Callable[[], int], namespaces_go_at_once: Any
) -> AsyncIterator[tuple[Field, Callable[..., contextlib.AbstractAsyncContextManager[str]]]]:
    """Like `field`, with a context manager that runs an operator instead of a running operator.

    The processes of control planes continue to run after their operator ends.
    """
    state = Path(tempfile.mkdtemp(prefix="kplane-operator-"))
    config = ClusterConfig.load(api_server.admin_kubeconfig)
    async with namespaces_go_at_once(config), Client(config, field_manager="kplane") as client:
        new_field = Field(client, api_server, state, eventually)
        try:
            yield new_field, lambda **settings: running_operator(api_server, state, port=hold_port(), **settings)
            async with running_operator(api_server, state, port=hold_port()):
                await clean(new_field)
        finally:
            await end_processes(state, grace_seconds=2.0)
            shutil.rmtree(state, ignore_errors=True)


@pytest.fixture
async def field_without_etcd(
    api_server: Handle,
    tmp_path: Path,
    eventually: Callable[..., Any],
    hold_port: Callable[[], int],
    namespaces_go_at_once: Any,
) -> AsyncIterator[Field]:
    """Like `field`, with an operator that has no shared etcd."""
    config = ClusterConfig.load(api_server.admin_kubeconfig)
    async with namespaces_go_at_once(config), Client(config, field_manager="kplane") as client:
        new_field = Field(client, api_server, tmp_path, eventually)
        async with running_operator(api_server, tmp_path, port=hold_port(), shared_etcd=False):
            yield new_field


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(field: Field, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClusterConfig]:
    """Address that serves the management cluster's API server below each /clusters/<path>/control-plane.

    Several control planes can adopt that API server, each at its own path.
    """
    directory = tmp_path_factory.mktemp("shared")
    async with shared_address(ClusterConfig.load(field.handle.admin_kubeconfig), directory=directory) as config:
        yield config
        # The operator revokes credentials at this address: delete the control planes before the address goes away.
        await clean(field)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(field: Field, shared: ClusterConfig) -> dict[str, Any]:
    """Spec of a ControlPlaneEndpoint with the shared address."""
    return await door_to(field, "door", config=shared)


@pytest_asyncio.fixture(loop_scope="module")
async def adopt(field: Field, door: dict[str, Any]) -> AsyncIterator[Callable[..., Awaitable[dict[str, Any]]]]:
    """`await adopt(name, at=None, annotations=None, **spec)`: create a control plane for which no process starts.

    Its API server is `at`, or the API server of the management cluster below a path. Control planes at the latter share
    their identities: a deleted control plane takes the credentials of the others with it. So the fixture deletes all of
    them at the end of the test.
    """
    names: list[str] = []

    async def make(
        name: str, *, at: ClusterConfig | None = None, annotations: dict[str, str] | None = None, **spec: Any
    ) -> dict[str, Any]:
        names.append(name)
        endpoint = door
        if at is not None:
            endpoint, spec = await door_to(field, name, config=at), {"mode": "Dedicated", **spec}
        await field.create("ControlPlaneEndpoint", name, **endpoint)
        metadata = {"name": name, "annotations": annotations or {}}
        body = {"metadata": metadata, "spec": {"endpointRef": {"name": name}, **spec}}
        return await field.client.create(CONTROL_PLANES, body)

    yield make
    for name in names:
        with contextlib.suppress(NotFound):
            await field.client.delete(CONTROL_PLANES, name)
    for name in names:
        await field.gone(CONTROL_PLANES, name)
        with contextlib.suppress(NotFound):
            await field.client.delete(CONTROL_PLANE_ENDPOINTS, name)


async def keep_kubeconfig(field: Field, name: str, *, config: ClusterConfig, allowed: bool = True) -> dict[str, str]:
    """Store a kubeconfig in a user's Secret, and return the reference to the Secret."""
    kubeconfig = base64.b64encode(json.dumps(config.to_kubeconfig()).encode()).decode()
    labels = {ALLOW_ENDPOINT_LABEL: "true"} if allowed else {}
    metadata = {"name": name, "namespace": "default", "labels": labels}
    await field.client.apply(SECRETS, {"metadata": metadata, "data": {"kubeconfig": kubeconfig}}, force=True)
    return {"name": name, "namespace": "default"}


async def door_to(field: Field, name: str, *, config: ClusterConfig) -> dict[str, Any]:
    """Return the spec of a ControlPlaneEndpoint for an API server."""
    return {"endpoint": config.server, "credentialsSecretRef": await keep_kubeconfig(field, name, config=config)}


async def owner_of(config: ClusterConfig) -> ClusterConfig:
    """Create a ServiceAccount with role cluster-admin for the owner of an adopted API server.

    Return its credentials. No control plane issues or revokes their token.
    """
    async with Client(config, field_manager="kplane") as client:
        await client.apply(SERVICE_ACCOUNTS, {"metadata": {"name": "owner", "namespace": "default"}}, force=True)
        body = {
            "metadata": {"name": "owner"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "owner", "namespace": "default"}],
        }
        await client.apply(CLUSTER_ROLE_BINDINGS, body, force=True)
        path = "/api/v1/namespaces/default/serviceaccounts/owner/token"
        issued = await client.request("POST", path, body={"spec": {}})
    return replace(config, token=issued["status"]["token"], client_certificate=None, client_key=None)


async def clean(field: Field) -> None:
    """Delete all objects of kplane's kinds."""
    # Delete adopted control planes first, while their API servers still run.
    control_planes = (await field.client.list(CONTROL_PLANES)).items
    for adopted in (True, False):
        names = [obj["metadata"]["name"] for obj in control_planes if ("endpointRef" in obj["spec"]) is adopted]
        for name in names:
            with contextlib.suppress(NotFound):
                await field.client.delete(CONTROL_PLANES, name)
        for name in names:
            await field.gone(CONTROL_PLANES, name)
    resources = (CONTROL_PLANE_SNAPSHOTS, CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANE_ENDPOINTS, CONTROL_PLANE_CLASSES)
    for resource in resources:
        for obj in (await field.client.list(resource)).items:
            with contextlib.suppress(NotFound):
                await field.client.delete(resource, obj["metadata"]["name"])
