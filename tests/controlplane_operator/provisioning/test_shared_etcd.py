"""Tenants on one etcd: each has its keys and cannot reach another's."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane_operator.bootstrap import (
    ADMIN_ACCOUNT,
    CONTROLLERS_CERTIFICATE_USER,
    bootstrap,
    request_token,
    revoke,
)
from controlplane_operator.errors import BootstrapFailed
from provider import (
    CLUSTER_ROLE_BINDINGS,
    CONFIG_MAPS,
    NAMESPACES,
    SERVICE_ACCOUNTS,
    Client,
    ClusterConfig,
    Forbidden,
    Unauthorized,
)
from workloads import ProgramFailed, run_program

pytestmark = pytest.mark.integration


async def _as_user(shared: Any, user: str, directory: Path, *args: str) -> Any:
    access = shared.access(user)
    directory.mkdir(exist_ok=True)
    for name, content in (
        ("ca.crt", access.ca),
        ("client.crt", access.client.certificate),
        ("client.key", access.client.key),
    ):
        (directory / name).write_bytes(content)
    connection = (
        f"--endpoints={shared.url}",
        f"--cacert={directory}/ca.crt",
        f"--cert={directory}/client.crt",
        f"--key={directory}/client.key",
    )
    answer = await run_program(shared.keyspace.etcdctl, [*connection, *args, "-w", "json"], timeout_seconds=10)
    return json.loads(answer)


async def test_a_tenants_user_reaches_its_own_prefix_only(shared_etcd: Any, tmp_path: Path) -> None:
    for path in ("a", "aa", "a-b"):
        await shared_etcd.keyspace.grant(path, prefix=f"/clusters/{path}/")
        await _as_user(shared_etcd, path, tmp_path / path, "put", f"/clusters/{path}/key", path)

    for foreign in ("/clusters/aa/key", "/clusters/a-b/key", "/clusters/a", "/registry/x", "/"):
        with pytest.raises(ProgramFailed, match="permission denied"):
            await _as_user(shared_etcd, "a", tmp_path / "a", "get", foreign)
        with pytest.raises(ProgramFailed, match="permission denied"):
            await _as_user(shared_etcd, "a", tmp_path / "a", "put", foreign, "x")
    with pytest.raises(ProgramFailed, match="permission denied"):
        await _as_user(shared_etcd, "a", tmp_path / "a", "del", "", "--prefix")


async def test_destroy_takes_one_prefix_and_leaves_its_neighbours_byte_by_byte(
    shared_etcd: Any, tmp_path: Path
) -> None:
    keyspace = shared_etcd.keyspace
    for path in ("a", "aa", "a-b"):
        await keyspace.grant(path, prefix=f"/clusters/{path}/")
        for number in range(20):
            await _as_user(shared_etcd, path, tmp_path / path, "put", f"/clusters/{path}/k{number}", path)
    others = [
        (await _as_user(shared_etcd, path, tmp_path / path, "get", f"/clusters/{path}/", "--prefix"))["kvs"]
        for path in ("aa", "a-b")
    ]

    assert await keyspace.delete_prefix("/clusters/a/") == 20
    assert await keyspace.count("/clusters/a/") == 0
    assert await keyspace.delete_prefix("/clusters/a/") == 0

    after = [
        (await _as_user(shared_etcd, path, tmp_path / path, "get", f"/clusters/{path}/", "--prefix"))["kvs"]
        for path in ("aa", "a-b")
    ]
    assert after == others
    assert {base64.b64decode(pair["key"]).decode().split("/")[2] for kvs in after for pair in kvs} == {"aa", "a-b"}


async def test_a_revoked_user_is_refused_and_may_be_granted_again(shared_etcd: Any, tmp_path: Path) -> None:
    keyspace = shared_etcd.keyspace
    await keyspace.grant("a", prefix="/clusters/a/")
    await keyspace.grant("a", prefix="/clusters/a/")
    await _as_user(shared_etcd, "a", tmp_path / "a", "put", "/clusters/a/key", "1")

    await keyspace.revoke("a")
    await keyspace.revoke("a")
    with pytest.raises(ProgramFailed):
        await _as_user(shared_etcd, "a", tmp_path / "a", "get", "/clusters/a/key")

    await keyspace.grant("a", prefix="/clusters/a/")
    assert (await _as_user(shared_etcd, "a", tmp_path / "a", "get", "/clusters/a/key"))["count"] == 1


async def test_a_tenants_api_server_works_with_the_rights_of_its_prefix(
    shared_etcd: Any, start_tenant: Callable[[str], Awaitable[Any]], ready: Callable[..., Awaitable[object]]
) -> None:
    tenant = await start_tenant("a")
    async with Client(tenant.administrator) as client:
        await client.create(NAMESPACES, {"metadata": {"name": "shop"}})
        await client.create(CONFIG_MAPS, {"metadata": {"name": "prices", "namespace": "shop"}, "data": {"tea": "3"}})

    await shared_etcd.runtime.stop(tenant.component)
    assert await shared_etcd.keyspace.count("/clusters/a/") > 50
    again = await start_tenant("a-b")
    async with Client(again.administrator) as client:
        assert "shop" not in {item["metadata"]["name"] for item in (await client.list(NAMESPACES)).items}


async def test_bootstrap_writes_once_mends_drift_and_can_be_revoked(
    start_tenant: Callable[[str], Awaitable[Any]],
) -> None:
    tenant = await start_tenant("a")
    settings: dict[str, Any] = {"admin": ADMIN_ACCOUNT, "controllers": CONTROLLERS_CERTIFICATE_USER}

    async def versions(client: Client) -> list[str]:
        found = [
            *(await client.list(CLUSTER_ROLE_BINDINGS)).items,
            *(await client.list(SERVICE_ACCOUNTS)).items,
            *(await client.list(NAMESPACES)).items,
        ]
        return sorted(f"{item['metadata']['name']}={item['metadata']['resourceVersion']}" for item in found)

    async with Client(tenant.administrator) as client:
        await bootstrap(client, admin_role="cluster-admin", **settings)
        before = await versions(client)
        await bootstrap(client, admin_role="cluster-admin", **settings)
        assert await versions(client) == before

        token = await request_token(client, service_account=ADMIN_ACCOUNT.name, lifetime=dt.timedelta(hours=2))
        config = ClusterConfig(
            server=tenant.administrator.server, ca_data=tenant.administrator.ca_data, token=token.value
        )
        async with Client(config) as admin:
            await admin.create(NAMESPACES, {"metadata": {"name": "by-admin"}})

        await client.delete(SERVICE_ACCOUNTS, ADMIN_ACCOUNT.name, namespace="kplane-system")
        await bootstrap(client, admin_role="view", **settings)
        binding = await client.get(CLUSTER_ROLE_BINDINGS, "controlplane-admin")
        assert binding["roleRef"]["name"] == "view"

        with pytest.raises(BootstrapFailed, match="no-such-role"):
            await bootstrap(client, admin_role="no-such-role", **settings)

        await revoke(client)
        await revoke(client)
        async with Client(config) as admin:
            # The API server remembers for some seconds whom a token belongs to, and then has no rights for it.
            with pytest.raises((Forbidden, Unauthorized)):
                await admin.list(NAMESPACES)
