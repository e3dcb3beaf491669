"""A shared etcd and API servers of tenants, built from the operator's components."""

from __future__ import annotations

import contextlib
import datetime as dt
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from kplane.binaries.programs import Binaries
from kplane.components.api_server import API_SERVER_PORTS, READY, api_server_component, server_url, serving_hosts
from kplane.components.etcd import DEFAULT_QUOTA_BYTES, ETCD_PORTS, EtcdAccess, client_url, etcd_component
from kplane.controlplane_operator.backends.readiness import READY_WITHOUT_BOOTSTRAP_CHECKS
from kplane.controlplane_operator.shared_etcd.keyspace import Keyspace, key_prefix
from kplane.data import Client, Credentials
from kplane.embedded.components import bound
from kplane.embedded.credentials import write_private
from kplane.pki.authorities import CONTROLLERS_USER, TenantAuthorities, TenantCertificates
from kplane.pki.primitives import KeyPair, create_authority, issue_client, issue_serving
from kplane.provider import ClusterConfig
from kplane.workloads import Address, Component, Phase, ProcessRuntime

Eventually = Callable[..., Awaitable[Any]]


@dataclass(frozen=True)
class SharedEtcd:
    runtime: ProcessRuntime
    """Runtime of the etcd. Belongs to the event loop of the fixture."""
    component: Component
    address: Address
    authority: KeyPair
    url: str
    keyspace: Keyspace
    """The connection belongs to the event loop of the first call. `close` closes the connection."""
    directory: Path
    """Client certificates of users, a subdirectory for each user."""

    @contextlib.asynccontextmanager
    async def client(self, user: str) -> AsyncIterator[Client]:
        """Connect to etcd as a user."""
        directory = self.directory / user
        directory.mkdir(mode=0o700, exist_ok=True)
        files = Credentials.in_directory(directory)
        pair = issue_client(self.authority, user=user)
        for file, content in (
            (files.ca, self.authority.certificate),
            (files.certificate, pair.certificate),
            (files.key, pair.key),
        ):
            write_private(file, content=content)
        async with Client(self.url, credentials=files) as client:
            yield client

    def access(self, user: str) -> EtcdAccess:
        return EtcdAccess((self.url,), self.authority.certificate, issue_client(self.authority, user=user))


@dataclass(frozen=True)
class Tenant:
    component: Component
    administrator: ClusterConfig
    authorities: TenantAuthorities
    describe: Callable[[dt.datetime], Component]
    """Returns the component as of a given time."""


async def start_etcd(
    runtime: ProcessRuntime, *, directory: Path, eventually: Eventually, quota_bytes: int = DEFAULT_QUOTA_BYTES
) -> SharedEtcd:
    """Start an etcd that does not sync its writes to disk."""
    authority = create_authority("shared-etcd")
    address = await runtime.reserve("shared-etcd", ports=ETCD_PORTS)
    server = issue_serving(authority, common_name="etcd", hosts=[address.host], client=True)
    etcd = etcd_component(
        "shared-etcd", address=address, ca=authority.certificate, server=server, quota_bytes=quota_bytes
    )
    etcd = bound(etcd, args=("--unsafe-no-fsync",))
    await runtime.apply(etcd)
    await until_ready(runtime, etcd.name, eventually=eventually)
    users = directory / "users"
    users.mkdir()
    keyspace = Keyspace(client_url(address), credentials=users / "root")
    shared = SharedEtcd(runtime, etcd, address, authority, client_url(address), keyspace, users)
    async with shared.client("root"):
        await keyspace.ensure_authentication()
    return shared


@contextlib.asynccontextmanager
async def running_etcd(binaries: Binaries, *, directory: Path, eventually: Eventually) -> AsyncIterator[SharedEtcd]:
    """Run an etcd in a separate runtime. At the end, delete all components of that runtime."""
    async with ProcessRuntime(directory / "runtime", programs=binaries.directories) as runtime:
        try:
            shared = await start_etcd(runtime, directory=directory, eventually=eventually)
            await shared.keyspace.close()
            yield shared
        finally:
            await delete_all(runtime)


async def start_api_server(
    runtime: ProcessRuntime, path: str, *, shared: SharedEtcd, eventually: Eventually, read_only: bool = False
) -> Tenant:
    """Start an API server with its keys below a path of the etcd. With `read_only`, the keys exist already."""
    name = f"apiserver-{path}"
    await shared.keyspace.grant(path, prefix=key_prefix(path), read_only=read_only)
    address = await runtime.reserve(name, ports=API_SERVER_PORTS)
    authorities = TenantAuthorities.create(path)
    first = TenantCertificates.renewed(None, **_wanted(shared, authorities, address, path))

    def describe(now: dt.datetime) -> Component:
        settings = _wanted(shared, authorities, address, path)
        certificates = TenantCertificates.renewed(first, **(settings | {"now": now}))
        component = api_server_component(
            name,
            address=address,
            authorities=authorities,
            certificates=certificates,
            etcd=EtcdAccess((shared.url,), shared.authority.certificate, certificates.etcd_client),
            etcd_prefix=key_prefix(path).rstrip("/"),
            etcd_shared=True,
            ready_at=READY_WITHOUT_BOOTSTRAP_CHECKS if read_only else READY,
        )
        return bound(component)

    component = describe(dt.datetime.now(dt.UTC))
    await runtime.apply(component)
    await until_ready(runtime, name, eventually=eventually)
    administrator = authorities.issue_administrator()
    config = ClusterConfig(
        server=server_url(address),
        ca_data=authorities.serving.certificate,
        client_certificate=administrator.certificate,
        client_key=administrator.key,
    )
    return Tenant(component, config, authorities, describe)


async def until_ready(runtime: ProcessRuntime, name: str, *, eventually: Eventually) -> None:
    await eventually(lambda: runtime.state(name), lambda state: state.phase is Phase.READY, timeout=120.0)


async def delete_all(runtime: ProcessRuntime) -> None:
    """Delete every component, the etcd last: without etcd, an API server stops only after its whole grace period."""
    for name in sorted(runtime.names(), key=lambda name: name == "shared-etcd"):
        await runtime.delete(name)


def _wanted(shared: SharedEtcd, authorities: TenantAuthorities, address: Address, user: str) -> dict[str, Any]:
    return {
        "authorities": authorities,
        "hosts": serving_hosts(address),
        "etcd_authority": shared.authority,
        "etcd_user": user,
        "controllers_user": CONTROLLERS_USER,
        "now": dt.datetime.now(dt.UTC),
    }


async def opens_peer_port(address: Address, *, ca: bytes, pair: KeyPair, directory: Path) -> bool:
    """Return whether the peer port of an etcd accepts a client with this certificate."""
    pem = directory / "peer.pem"
    pem.unlink(missing_ok=True)
    write_private(pem, content=pair.certificate + pair.key)
    context = ssl.create_default_context(cadata=ca.decode())
    context.load_cert_chain(pem)
    url = f"https://{address.host}:{address.ports['peer']}/members"
    try:
        async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False
