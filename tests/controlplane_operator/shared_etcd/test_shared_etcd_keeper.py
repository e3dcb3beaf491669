"""Secrets of the shared etcd: created once, repaired afterwards, and not recreated after a loss."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.shared_etcd import keeper as keeper_module
from kplane.controlplane_operator.shared_etcd.certificates import authority_of, create_credentials
from kplane.pki.errors import CredentialsInvalid
from kplane.pki.primitives import create_authority
from kplane.provider import Client, Conflict, Unreachable
from kplane.provider.client.resources import SECRETS

pytestmark = pytest.mark.integration


def encoded(data: dict[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(content).decode() for name, content in data.items()}


@contextlib.asynccontextmanager
async def running(*keepers: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(keeper.run()) for keeper in keepers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_missing_secrets_are_created_and_used(site: Any) -> None:
    await site.keeper().check()

    credentials, server = await site.data("credentials"), await site.data("server")
    assert set(credentials) == {"ca.crt", "ca.key", "client.crt", "client.key"}
    assert set(server) == {"ca.crt", "server.crt", "server.key"}
    assert server["ca.crt"] == credentials["ca.crt"]
    for name in ("credentials", "server"):
        labels = (await site.secret(name))["metadata"]["labels"]
        assert labels == {"app.kubernetes.io/managed-by": "kplane", "app.kubernetes.io/part-of": "kplane"}
    assert site.etcd.authority == authority_of(credentials)
    assert (site.etcd.keyspace.credentials / "client.key").read_bytes() == credentials["client.key"]


async def test_valid_secrets_are_not_written_by_any_operator(site: Any) -> None:
    keeper = site.keeper()
    await keeper.check()
    before = [(await site.secret(name))["metadata"]["resourceVersion"] for name in ("credentials", "server")]
    await keeper.check()
    await site.keeper().check()
    assert [(await site.secret(name))["metadata"]["resourceVersion"] for name in ("credentials", "server")] == before


async def test_concurrent_operators_agree_on_one_authority(site: Any, eventually: Any) -> None:
    keepers, etcds = [], []
    for number in range(4):
        site.directory = site.directory.with_name(f"credentials-{number}")
        keepers.append(site.keeper())
        etcds.append(site.etcd)
    async with running(*keepers):
        await eventually(lambda: {etcd.authority.certificate for etcd in etcds}, lambda found: len(found) == 1)
    credentials = await site.data("credentials")
    assert etcds[0].authority == authority_of(credentials)
    assert (await site.data("server"))["ca.crt"] == credentials["ca.crt"]
    assert {(etcd.keyspace.credentials / "client.key").read_bytes() for etcd in etcds} == {credentials["client.key"]}


async def test_due_certificates_are_renewed_and_given_to_the_client(site: Any) -> None:
    keeper = site.keeper()
    await keeper.check()
    before = await site.data("credentials") | await site.data("server")
    earlier = site.etcd.keyspace.credentials

    site.later = timedelta(days=250)
    await keeper.check()

    after = await site.data("credentials") | await site.data("server")
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"client.crt", "client.key", "server.crt", "server.key"}
    assert (site.etcd.keyspace.credentials / "client.crt").read_bytes() == after["client.crt"]
    assert (earlier / "client.crt").read_bytes() == before["client.crt"]


@pytest.mark.parametrize("spoiled", ["deleted", "emptied", "garbage", "labels"])
async def test_damaged_server_secret_is_repaired(site: Any, spoiled: str) -> None:
    keeper = site.keeper()
    await keeper.check()
    authority = site.etcd.authority
    match spoiled:
        case "deleted":
            await site.delete("server")
        case "emptied":
            await site.edit("server", data=None)
        case "garbage":
            await site.edit("server", data=encoded({"server.crt": b"garbage", "ca.crt": b"garbage"}))
        case _:
            await site.edit("server", metadata={"labels": None})

    await keeper.check()

    server = await site.data("server")
    assert set(server) == {"ca.crt", "server.crt", "server.key"}
    assert server["ca.crt"] == authority.certificate
    assert b"garbage" not in server.values()
    assert (await site.secret("server"))["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "kplane"


async def test_running_keeper_recreates_a_deleted_secret(
    site: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "_PERIOD_SECONDS", 0.2)
    async with running(site.keeper()):
        await eventually(lambda: site.secret("server"))
        await eventually(lambda: site.etcd.authority)
        await site.delete("server")
        await eventually(lambda: site.secret("server"))


async def test_lost_credentials_are_restored_from_memory_of_operator(site: Any) -> None:
    keeper = site.keeper()
    await keeper.check()
    before = await site.data("credentials")
    await site.delete("credentials")
    await keeper.check()
    assert await site.data("credentials") == before


async def test_lost_credentials_are_not_recreated_beside_server_secret(site: Any) -> None:
    await site.keeper().check()
    server = await site.data("server")
    await site.delete("credentials")

    keeper = site.keeper()
    with pytest.raises(CredentialsInvalid, match=r"kplane-etcd-credentials .* is gone, and Secret kplane-etcd-server"):
        await keeper.check()
    assert await site.data("server") == server
    secrets = await site.client.list(SECRETS, namespace=site.namespace)
    assert f"{site.namespace}/kplane-etcd-credentials" not in str(secrets.items)

    # The error names the remedy: an authority that an administrator creates on purpose.
    authority = create_authority("by hand")
    body = {
        "metadata": {"name": "kplane-etcd-credentials", "namespace": site.namespace},
        "data": encoded({"ca.crt": authority.certificate, "ca.key": authority.key}),
    }
    await site.client.create(SECRETS, body)
    await keeper.check()
    assert site.etcd.authority == authority
    assert (await site.data("server"))["ca.crt"] == authority.certificate


async def test_lost_credentials_are_not_recreated_beside_tenant_data(site: Any) -> None:
    body = {"metadata": {"name": site.namespace}, "spec": {"virtual": {"clusterPath": site.namespace}}}
    await site.client.create(CONTROL_PLANES, body)
    try:
        status: dict[str, Any] = {"status": {"clusterPath": site.namespace, "phase": "Provisioning"}}
        await site.client.patch(CONTROL_PLANES, site.namespace, status, subresource="status")
        await site.keeper().check()  # a control plane that was never published has no data
        for name in ("credentials", "server"):
            await site.delete(name)
        status = {"status": {"endpoint": "https://10.0.0.1:6443", "home": {"mode": "Virtual", "dataStore": "pool-b"}}}
        await site.client.patch(CONTROL_PLANES, site.namespace, status, subresource="status")
        await site.keeper().check()  # the data are in another data store
        for name in ("credentials", "server"):
            await site.delete(name)
        status = {"status": {"home": {"mode": "Virtual", "dataStore": None}}}
        await site.client.patch(CONTROL_PLANES, site.namespace, status, subresource="status")
        with pytest.raises(CredentialsInvalid, match=f"control plane {site.namespace} has data there: restore it"):
            await site.keeper().check()
    finally:
        await site.client.delete(CONTROL_PLANES, site.namespace)
    await site.keeper().check()


async def test_damaged_authority_is_reported_and_left_unchanged(site: Any, eventually: Any) -> None:
    await site.client.create(
        SECRETS,
        {
            "metadata": {"name": "kplane-etcd-credentials", "namespace": site.namespace},
            "data": encoded(create_credentials("etcd") | {"ca.key": b"garbage"}),
        },
    )
    before = await site.secret("credentials")
    async with running(site.keeper()):
        message = await eventually(site.etcd.problem, lambda problem: "damaged" in (problem or ""))
    assert f"Secret {site.namespace}/kplane-etcd-credentials is damaged: entries ca.crt and ca.key" in message
    assert await site.secret("credentials") == before


async def test_unreachable_api_server_leaves_credentials_in_use(site: Any, unreachable: Callable[[], Client]) -> None:
    keeper = site.keeper()
    await keeper.check()
    authority, keyspace = site.etcd.authority, site.etcd.keyspace
    async with unreachable() as away:
        keeper._client = away
        with pytest.raises(Unreachable):
            await keeper.check()
    assert (site.etcd.authority, site.etcd.keyspace) == (authority, keyspace)
    assert keyspace.credentials.is_dir()


async def test_keeper_waits_for_an_unreachable_api_server(
    site: Any, unreachable: Callable[[], Client], eventually: Any
) -> None:
    async with unreachable() as away:
        keeper = site.keeper(client=away)
        async with running(keeper):
            await eventually(site.etcd.problem, lambda problem: "127.0.0.1:1" in (problem or ""))
            with pytest.raises(KeyspaceError, match="not there yet"):
                _ = site.etcd.keyspace
            keeper._client = site.operator
            await eventually(lambda: site.etcd.authority)


async def test_concurrent_write_of_a_secret_raises_conflict(site: Any) -> None:
    await site.keeper().check()
    keeper = site.keeper()
    existing = await site.secret("server")
    await site.edit("server", metadata={"annotations": {"by": "somebody"}})
    with pytest.raises(Conflict):
        await keeper._have("kplane-etcd-server", known=existing, data={"server.crt": b"old"})
