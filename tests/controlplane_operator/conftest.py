"""A shared etcd and tenants' API servers on it, of the components that the operator runs."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from controlplane_operator.credentials import (
    CONTROLLERS_USER,
    KeyPair,
    TenantAuthorities,
    TenantCertificates,
    create_authority,
    issue_client,
    issue_serving,
)
from controlplane_operator.provisioning import (
    API_SERVER_PORTS,
    ETCD_PORTS,
    EtcdAccess,
    Keyspace,
    api_server_component,
    client_url,
    etcd_component,
    key_prefix,
    server_url,
    serving_hosts,
)
from provider import ClusterConfig
from workloads import Address, Component, Phase, ProcessRuntime

if TYPE_CHECKING:
    from tools.binaries import Binaries


@dataclass(frozen=True)
class SharedEtcd:
    runtime: ProcessRuntime
    component: Component
    address: Address
    authority: KeyPair
    url: str
    keyspace: Keyspace

    def access(self, user: str) -> EtcdAccess:
        return EtcdAccess((self.url,), self.authority.certificate, issue_client(self.authority, user=user))


@dataclass(frozen=True)
class Tenant:
    component: Component
    administrator: ClusterConfig
    authorities: TenantAuthorities
    describe: Callable[[dt.datetime], Component]
    """As it is to be at some time."""


Answering = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@pytest.fixture
def tls_server(tmp_path: Path) -> Callable[[Answering], contextlib.AbstractAsyncContextManager[ClusterConfig]]:
    """`async with tls_server(answer) as config`: a server with a CA of its own; `answer` answers everything."""

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
def ready(eventually: Callable[..., Awaitable[object]]) -> Callable[[ProcessRuntime, str], Awaitable[object]]:
    async def wait(runtime: ProcessRuntime, name: str) -> object:
        return await eventually(lambda: runtime.state(name), lambda state: state.phase is Phase.READY, timeout=120.0)

    return wait


@pytest.fixture
async def shared_etcd(
    binaries: Binaries, tmp_path: Path, ready: Callable[..., Awaitable[object]]
) -> AsyncIterator[SharedEtcd]:
    authority = create_authority("shared-etcd")
    async with ProcessRuntime(tmp_path / "runtime", programs=binaries.directories) as runtime:
        try:
            address = await runtime.reserve("shared-etcd", ports=ETCD_PORTS)
            server = issue_serving(authority, common_name="etcd", hosts=[address.host], client=True)
            etcd = etcd_component("shared-etcd", address=address, ca=authority.certificate, server=server)
            await runtime.apply(etcd)
            await ready(runtime, "shared-etcd")
            credentials = tmp_path / "root"
            credentials.mkdir(mode=0o700)
            root = issue_client(authority, user="root")
            for name, content in (
                ("ca.crt", authority.certificate),
                ("client.crt", root.certificate),
                ("client.key", root.key),
            ):
                (credentials / name).write_bytes(content)
            keyspace = Keyspace(
                etcdctl=binaries.path("etcdctl"), endpoints=(client_url(address),), credentials=credentials
            )
            await keyspace.ensure_authentication()
            yield SharedEtcd(runtime, etcd, address, authority, client_url(address), keyspace)
        finally:
            # An API server whose etcd is gone takes all of its grace to end.
            await asyncio.gather(*(runtime.delete(name) for name in runtime.names() if name != "shared-etcd"))
            await runtime.delete("shared-etcd")


@pytest.fixture
def start_tenant(
    shared_etcd: SharedEtcd, ready: Callable[..., Awaitable[object]]
) -> Callable[[str], Awaitable[Tenant]]:
    async def start(path: str) -> Tenant:
        runtime = shared_etcd.runtime
        name = f"apiserver-{path}"
        await shared_etcd.keyspace.grant(path, prefix=key_prefix(path))
        address = await runtime.reserve(name, ports=API_SERVER_PORTS)
        authorities = TenantAuthorities.create(path)
        first = TenantCertificates.renewed(None, **_wanted(shared_etcd, authorities, address, path))

        def describe(now: dt.datetime) -> Component:
            wanted = _wanted(shared_etcd, authorities, address, path)
            certificates = TenantCertificates.renewed(first, **(wanted | {"now": now}))
            return api_server_component(
                name,
                address=address,
                authorities=authorities,
                certificates=certificates,
                etcd=EtcdAccess((shared_etcd.url,), shared_etcd.authority.certificate, certificates.etcd_client),
                etcd_prefix=key_prefix(path).rstrip("/"),
                etcd_shared=True,
            )

        component = describe(dt.datetime.now(dt.UTC))
        await runtime.apply(component)
        await ready(runtime, name)
        administrator = authorities.issue_administrator()
        config = ClusterConfig(
            server=server_url(address),
            ca_data=authorities.serving.certificate,
            client_certificate=administrator.certificate,
            client_key=administrator.key,
        )
        return Tenant(component, config, authorities, describe)

    return start


def _wanted(shared: SharedEtcd, authorities: TenantAuthorities, address: Address, user: str) -> dict[str, Any]:
    return {
        "authorities": authorities,
        "hosts": serving_hosts(address),
        "etcd_authority": shared.authority,
        "etcd_user": user,
        "controllers_user": CONTROLLERS_USER,
        "now": dt.datetime.now(dt.UTC),
    }
