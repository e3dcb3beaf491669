"""Permissions of tenants on the shared etcd, and deletion of their prefixes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.shared_etcd.keyspace import Keyspace
from kplane.data import EtcdError, Owner, Permission, PermissionDenied

pytestmark = pytest.mark.integration


async def _stored(shared: Any, path: str) -> Mapping[bytes, tuple[bytes, int]]:
    async with shared.client(path) as tenant:
        pages = [page async for page in tenant.pages(f"/clusters/{path}/")]
    return {item.key: (item.value, item.revision) for page in pages for item in page.items}


async def test_delete_prefix_leaves_neighbouring_prefixes_unchanged(shared_etcd: Any, path: str) -> None:
    keyspace, neighbours = shared_etcd.keyspace, (f"{path}x", f"{path}-b")
    owner = Owner("uid", path)
    await keyspace.claim(f"/clusters/{path}/", owner=owner, known=False)
    for neighbour in (path, *neighbours):
        assert await keyspace.grant(neighbour, prefix=f"/clusters/{neighbour}/")
        async with shared_etcd.client(neighbour) as tenant:
            for number in range(20):
                await tenant.put(f"/clusters/{neighbour}/k{number}".encode(), neighbour.encode())
    others = [await _stored(shared_etcd, neighbour) for neighbour in neighbours]

    assert await keyspace.delete_prefix(f"/clusters/{path}/", owner=owner) == 20
    assert await keyspace.count(f"/clusters/{path}/") == 0
    assert await keyspace.owner(f"/clusters/{path}/") is None

    assert [await _stored(shared_etcd, neighbour) for neighbour in neighbours] == others
    assert [len(neighbour) for neighbour in others] == [20, 20]


async def test_revoked_user_is_denied_until_granted_again(shared_etcd: Any, path: str) -> None:
    keyspace = shared_etcd.keyspace
    assert await keyspace.grant(path, prefix=f"/clusters/{path}/")
    assert not await keyspace.grant(path, prefix=f"/clusters/{path}/")
    async with shared_etcd.client(path) as tenant:
        await tenant.put(f"/clusters/{path}/key".encode(), b"1")

        await keyspace.revoke(path)
        await keyspace.revoke(path)
        with pytest.raises(PermissionDenied):
            await tenant.count(f"/clusters/{path}/")

        assert await keyspace.grant(path, prefix=f"/clusters/{path}/")
        assert await tenant.count(f"/clusters/{path}/") == 1


async def test_read_only_grant_denies_writes_until_next_grant(shared_etcd: Any, path: str) -> None:
    keyspace, prefix = shared_etcd.keyspace, f"/clusters/{path}/"
    await keyspace.grant(path, prefix=prefix)
    async with shared_etcd.client(path) as tenant:
        await tenant.put(f"{prefix}key".encode(), b"1")
        written = 0

        async def write() -> None:
            nonlocal written
            while True:
                written = await tenant.put(f"{prefix}key".encode(), b"2")

        writers = [asyncio.create_task(write()) for _ in range(8)]
        assert await keyspace.grant(path, prefix=prefix, read_only=True)
        # Each writer ends by a refused write. Every acknowledged write precedes the return of the grant.
        fenced = await _stored(shared_etcd, path)
        for error in await asyncio.gather(*writers, return_exceptions=True):
            assert isinstance(error, EtcdError)
        assert await _stored(shared_etcd, path) == fenced
        assert fenced[f"{prefix}key".encode()][1] >= written

        assert not await keyspace.grant(path, prefix=prefix, read_only=True)
        with pytest.raises(PermissionDenied):
            await tenant.put(f"{prefix}key".encode(), b"3")
        assert await keyspace.grant(path, prefix=prefix)
        await tenant.put(f"{prefix}key".encode(), b"3")


async def test_grant_revokes_extra_permissions_without_interruption(shared_etcd: Any, path: str) -> None:
    keyspace = shared_etcd.keyspace
    await keyspace.grant(path, prefix=f"/clusters/{path}-old/")
    await keyspace.grant(path, prefix=f"/clusters/{path}/")
    async with shared_etcd.client("root") as root, shared_etcd.client(path) as tenant:
        await root.access.add_role(f"{path}-spy")
        await root.access.grant_permission(f"{path}-spy", Permission("read", b"/secret"))
        await root.access.grant_role(path, f"{path}-spy")
        await root.access.grant_permission(path, Permission.below("/clusters/"))
        await root.access.grant_permission(path, Permission.below(f"/clusters/{path}/", kind="read"))
        await tenant.count("/clusters/")

        task = asyncio.create_task(keyspace.grant(path, prefix=f"/clusters/{path}/"))
        while not task.done():
            await tenant.count(f"/clusters/{path}/")
        assert await task

        await tenant.put(f"/clusters/{path}/key".encode(), b"1")
        for key in (f"/clusters/{path}-old/key".encode(), f"/clusters/{path}x/key".encode(), b"/secret"):
            with pytest.raises(PermissionDenied):
                await tenant.get(key)
        assert await root.access.roles_of(path) == (path,)
        assert await root.access.permissions_of(path) == {Permission.below(f"/clusters/{path}/")}


@pytest.mark.parametrize("left", ["role", "user", "role and user"])
async def test_grant_completes_an_interrupted_grant(shared_etcd: Any, path: str, left: str) -> None:
    async with shared_etcd.client("root") as root, shared_etcd.client(path) as tenant:
        if "role" in left:
            await root.access.add_role(path)
        if "user" in left:
            await root.access.add_user(path)
        await shared_etcd.keyspace.grant(path, prefix=f"/clusters/{path}/")
        await tenant.put(f"/clusters/{path}/key".encode(), b"1")


async def test_silent_etcd_raises_keyspace_error_with_its_url(shared_etcd: Any, eventually: Callable[..., Any]) -> None:
    connections = set()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)
        try:
            await reader.read()
        finally:
            writer.close()
            connections.discard(writer)

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        url = "https://{}:{}".format(*server.sockets[0].getsockname())
        keyspace = Keyspace(url, credentials=shared_etcd.keyspace.credentials, timeout_seconds=1.0)
        async with asyncio.timeout(60):
            with pytest.raises(KeyspaceError, match=url):
                await keyspace.count("/clusters/a/")
            assert url in (await keyspace.problem() or "")
        await keyspace.close()
        # The client connects repeatedly, also while it closes.
        await eventually(lambda: not connections)


@pytest.mark.parametrize("prefix", ["", "/", "/clusters/", "/clusters/a", "/clusters/a/b/", "/registry/"])
async def test_keyspace_rejects_prefixes_of_no_control_plane(tmp_path: Path, prefix: str) -> None:
    keyspace = Keyspace("https://127.0.0.1:1", credentials=tmp_path)
    owner = Owner("uid")
    calls = [
        keyspace.grant("a", prefix=prefix),
        keyspace.count(prefix),
        keyspace.claim(prefix, owner=owner, known=True),
        keyspace.take_over(prefix, former=None, owner=owner),
        keyspace.release(prefix, owner=owner),
        keyspace.delete_prefix(prefix, owner=owner),
    ]
    for call in calls:
        with pytest.raises(KeyspaceError, match="is not the prefix of a control plane"):
            await call
