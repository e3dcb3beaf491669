"""Three members of a real etcd, root and tenants work with the keeper's certificates."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from kplane.components.etcd import ETCD_PORTS, client_url, etcd_component
from kplane.data import Client, Credentials
from kplane.pki.primitives import KeyPair, issue_client
from kplane.workloads import FILES, Address, Component, ProcessRuntime

if TYPE_CHECKING:
    from kplane.binaries.programs import Binaries

pytestmark = [pytest.mark.integration, pytest.mark.slow]

NAMES = ("member-0", "member-1", "member-2")


def member(name: str, *, addresses: dict[str, Address], server: dict[str, bytes]) -> Component:
    """Describe a member: the component of a dedicated control plane, with peers as in the chart."""
    pair = KeyPair(server["server.crt"], server["server.key"])
    component = etcd_component(name, address=addresses[name], ca=server["ca.crt"], server=pair)
    peers = {peer: f"https://{address.host}:{address.ports['peer']}" for peer, address in addresses.items()}
    overrides = {
        "--name": name,
        "--initial-cluster": ",".join(f"{peer}={url}" for peer, url in peers.items()),
        "--peer-trusted-ca-file": f"{FILES}/ca.crt",
    }
    arguments = (argument.partition("=") for argument in component.args)
    args = tuple(f"{flag}={overrides.get(flag, value)}" for flag, _, value in arguments)
    return dataclasses.replace(component, args=(*args, "--peer-cert-allowed-cn=root"))


@dataclasses.dataclass
class Members:
    runtime: ProcessRuntime
    addresses: dict[str, Address]

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(client_url(address) for address in self.addresses.values())

    async def apply(self, server: dict[str, bytes]) -> None:
        for name in NAMES:
            await self.runtime.apply(member(name, addresses=self.addresses, server=server))


@pytest.fixture
async def members(binaries: Binaries, tmp_path: Path) -> AsyncIterator[Members]:
    async with ProcessRuntime(tmp_path / "runtime", programs=binaries.directories) as runtime:
        try:
            yield Members(runtime, {name: await runtime.reserve(name, ports=ETCD_PORTS) for name in NAMES})
        finally:
            await asyncio.gather(*(runtime.delete(name) for name in runtime.names()))


async def shown(address: Address) -> bytes:
    """Return the certificate that a member presents to its clients."""
    port = address.ports["client"]
    return (await asyncio.to_thread(ssl.get_server_certificate, (address.host, port), timeout=20)).encode()


async def test_members_and_clients_work_during_certificate_renewal(
    site: Any, members: Members, tmp_path: Path, ready: Callable[..., Any], eventually: Any
) -> None:
    keeper = site.keeper(endpoint=f"https://localhost:{members.addresses[NAMES[0]].ports['client']}")
    await keeper.check()
    await members.apply(await site.data("server"))
    for name in NAMES:
        await ready(members.runtime, name)
    before = site.etcd.keyspace.credentials
    assert await site.etcd.problem() is None
    await healthy(members, before)

    await site.etcd.keyspace.ensure_authentication()
    await site.etcd.keyspace.grant("tenant", prefix="/clusters/tenant/")
    tenant = issue_client(site.etcd.authority, user="tenant")
    async with client_of(tenant, members.urls[1], site, tmp_path) as client:
        await client.put(b"/clusters/tenant/key", b"kept")

    site.later = timedelta(days=250)
    await keeper.check()
    renewed = await site.data("server")
    assert site.etcd.keyspace.credentials != before
    for credentials in (before, site.etcd.keyspace.credentials):
        # Either etcd's pods or the operator may be faster, so old and new certificates must work together.
        async with Client(members.urls[0], credentials=Credentials.in_directory(credentials)) as client:
            assert await client.count("/clusters/tenant/") == 1
    assert await site.etcd.keyspace.count("/clusters/tenant/") == 1
    await members.apply(renewed)
    for name in NAMES:
        await eventually(lambda name=name: shown(members.addresses[name]), lambda found: found == renewed["server.crt"])

    # Restarted members use the new certificate, and connect to each other with it.
    for name in NAMES:
        await members.runtime.stop(name)
        await members.runtime.apply(member(name, addresses=members.addresses, server=renewed))
        await ready(members.runtime, name)
        await healthy(members, site.etcd.keyspace.credentials)
    assert await site.etcd.keyspace.count("/clusters/tenant/") == 1
    async with client_of(tenant, members.urls[2], site, tmp_path) as client:
        item = await client.get(b"/clusters/tenant/key")
    assert item is not None
    assert item.value == b"kept"

    # etcd's HTTP gateway presents the members' certificate to etcd, which names root. Tenants must not act as root.
    assert await gateway_status(members.urls[0], tenant, site, tmp_path) in {400, 404}


async def healthy(members: Members, credentials: Path) -> None:
    for url in members.urls:
        async with Client(url, credentials=Credentials.in_directory(credentials)) as client:
            assert await client.problem() is None


@contextlib.asynccontextmanager
async def client_of(user: KeyPair, url: str, site: Any, directory: Path) -> AsyncIterator[Client]:
    pem, ca = directory / "user.pem", directory / "ca.crt"
    pem.touch(mode=0o600)
    pem.write_bytes(user.certificate + user.key)
    ca.write_bytes(site.etcd.authority.certificate)
    async with Client(url, credentials=Credentials(ca=ca, certificate=pem, key=pem)) as client:
        yield client


async def gateway_status(url: str, user: KeyPair, site: Any, directory: Path) -> int:
    context = ssl.create_default_context(cadata=site.etcd.authority.certificate.decode())
    context.load_cert_chain(directory / "user.pem")
    question = {"key": base64.b64encode(b"/").decode(), "range_end": base64.b64encode(b"\0").decode()}
    async with (
        aiohttp.ClientSession(skip_auto_headers=["Accept"]) as session,
        session.post(f"{url}/v3/kv/range", json=question, ssl=context) as answer,
    ):
        return answer.status
