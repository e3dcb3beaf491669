"""Fixtures: a shared etcd, API servers of tenants, and a session tenant that is reset before each test."""

from __future__ import annotations

import contextlib
import itertools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from aiohttp import web

from kplane.api.names import CONTROL_PLANE_LABEL
from kplane.controlplane_operator.shared_etcd.keyspace import key_prefix
from kplane.data import Template
from kplane.pki.primitives import create_authority, issue_serving
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import NAMESPACES, VALIDATING_ADMISSION_POLICY_BINDINGS
from kplane.workloads import ProcessRuntime

from . import buckets
from .reset import reset_api_server
from .tenants import SharedEtcd, Tenant, delete_all, running_etcd, start_api_server, start_etcd, until_ready

if TYPE_CHECKING:
    from kplane.binaries.programs import Binaries
    from kplane.embedded.handle import Handle

bucket = buckets.bucket

Answering = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Eventually = Callable[..., Awaitable[Any]]

_SYSTEM_NAMESPACES = {"default", "kube-system", "kube-public", "kube-node-lease"}
_numbers = itertools.count(1)


_GUARD = "kplane-controlplanes"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def unguarded(api_server: Handle, eventually: Eventually) -> AsyncIterator[None]:
    """A cluster without the admission policy that lets only the operator delete namespaces of control planes."""
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client:
        binding = await client.get(VALIDATING_ADMISSION_POLICY_BINDINGS, _GUARD)
        await client.delete(VALIDATING_ADMISSION_POLICY_BINDINGS, _GUARD)
        try:
            probe = f"kplane-cp-unguarded-{next(_numbers)}"
            labels = {CONTROL_PLANE_LABEL: "unguarded"}
            await client.create(NAMESPACES, {"metadata": {"name": probe, "labels": labels}})
            await eventually(lambda: client.delete(NAMESPACES, probe))
            yield
        finally:
            body = {"metadata": {"name": _GUARD}, "spec": binding["spec"]}
            await client.create(VALIDATING_ADMISSION_POLICY_BINDINGS, body)


@pytest.fixture
def tls_server(tmp_path: Path) -> Callable[[Answering], contextlib.AbstractAsyncContextManager[ClusterConfig]]:
    """`async with tls_server(answer) as config`: a TLS server with its own CA. `answer` handles all requests."""

    @contextlib.asynccontextmanager
    async def serve(answer: Answering) -> AsyncIterator[ClusterConfig]:
        authority = create_authority("test")
        serving = issue_serving(authority, common_name="test", hosts=["127.0.0.1"])
        (tmp_path / "pair").write_bytes(serving.certificate + serving.key)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(tmp_path / "pair")
        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
            host, port = runner.addresses[0]
            yield ClusterConfig(f"https://{host}:{port}", ca_data=authority.certificate)
        finally:
            await runner.cleanup()

    return serve


@pytest.fixture
def ready(eventually: Eventually) -> Callable[[ProcessRuntime, str], Awaitable[None]]:
    async def wait(runtime: ProcessRuntime, name: str) -> None:
        await until_ready(runtime, name, eventually=eventually)

    return wait


@pytest.fixture
def path() -> str:
    """A unique clusterPath. All paths with this prefix belong to the test."""
    return f"path{next(_numbers)}x"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def session_etcd(
    binaries: Binaries, tmp_path_factory: pytest.TempPathFactory, eventually: Eventually
) -> AsyncIterator[SharedEtcd]:
    """The etcd of all tests of the process."""
    directory = tmp_path_factory.mktemp("shared-etcd")
    async with running_etcd(binaries, directory=directory, eventually=eventually) as shared:
        yield shared


@pytest.fixture
async def shared_etcd(session_etcd: SharedEtcd) -> AsyncIterator[SharedEtcd]:
    """The etcd of the session. Each test uses its own path."""
    yield session_etcd
    await session_etcd.keyspace.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def standing(session_etcd: SharedEtcd, eventually: Eventually) -> tuple[Tenant, Template]:
    """The tenant of the session, and a template of its initial keys."""
    name = "standing"
    standing_tenant = await start_api_server(session_etcd.runtime, name, shared=session_etcd, eventually=eventually)
    await session_etcd.keyspace.close()
    async with Client(standing_tenant.administrator, field_manager="kplane") as client:

        async def namespaces() -> set[str]:
            return {namespace["metadata"]["name"] for namespace in (await client.list(NAMESPACES)).items}

        await eventually(namespaces, lambda found: found >= _SYSTEM_NAMESPACES)
    async with session_etcd.client("root") as etcd:
        return standing_tenant, await Template.read(etcd, key_prefix(name))


@pytest.fixture
async def tenant(standing: tuple[Tenant, Template], shared_etcd: SharedEtcd, eventually: Eventually) -> Tenant:
    """The tenant of the session, reset to its initial keys."""
    standing_tenant, template = standing
    async with (
        Client(standing_tenant.administrator, field_manager="kplane") as client,
        shared_etcd.client("root") as etcd,
    ):
        await reset_api_server(
            client, etcd=etcd, prefix=key_prefix("standing"), template=template, eventually=eventually
        )
    return standing_tenant


@pytest.fixture
async def runtime(binaries: Binaries, tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    """The runtime of the API servers of `start_tenant`."""
    async with ProcessRuntime(tmp_path / "runtime", programs=binaries.directories) as process_runtime:
        try:
            yield process_runtime
        finally:
            await delete_all(process_runtime)


@pytest.fixture
async def own_etcd(runtime: ProcessRuntime, tmp_path: Path, eventually: Eventually) -> AsyncIterator[SharedEtcd]:
    """An etcd in the test's own runtime."""
    shared = await start_etcd(runtime, directory=tmp_path, eventually=eventually)
    yield shared
    await shared.keyspace.close()


@pytest.fixture
def start_tenant(
    shared_etcd: SharedEtcd, runtime: ProcessRuntime, eventually: Eventually
) -> Callable[..., Awaitable[Tenant]]:
    """`await start_tenant(path)`: a tenant with its own API server, which the test may stop.

    With `read_only`, the API server starts on existing keys and writes none.
    """

    async def start(path: str, *, etcd: SharedEtcd | None = None, read_only: bool = False) -> Tenant:
        shared = etcd or shared_etcd
        return await start_api_server(runtime, path, shared=shared, eventually=eventually, read_only=read_only)

    return start
