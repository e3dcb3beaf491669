"""Users and roles of a real etcd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kplane.data import AlreadyExists, Client, Follower, NotFound, Permission, PermissionDenied, Place

pytestmark = pytest.mark.integration


async def test_access_status_is_enabled_and_has_revision_of_changes(client: Client) -> None:
    status = await client.access.status()
    assert status.enabled
    assert await client.access.status() == status
    await client.access.add_role("new")
    assert (await client.access.status()).revision > status.revision


async def test_user_has_permissions_of_its_role(etcd: Any, client: Client, prefix: str, tmp_path: Path) -> None:
    access, name = client.access, f"reader{prefix}"
    assert await access.roles_of(name) is None
    assert await access.permissions_of(name) is None

    await access.add_role(name)
    assert await access.permissions_of(name) == frozenset()
    await access.grant_permission(name, Permission.below(prefix, kind="read"))
    await access.grant_permission(name, Permission("write", f"{prefix}one".encode()))
    assert await access.permissions_of(name) == {
        Permission("read", prefix.encode(), prefix[:-1].encode() + b"0"),
        Permission("write", f"{prefix}one".encode()),
    }
    await access.add_user(name)
    assert await access.roles_of(name) == ()
    await access.grant_role(name, name)
    assert await access.roles_of(name) == (name,)

    async with Client(etcd.url, credentials=etcd.credentials(name, tmp_path / "user")) as user:
        await user.put(f"{prefix}one".encode(), b"")
        assert await user.count(prefix) == 1
        with pytest.raises(PermissionDenied):
            await user.put(f"{prefix}two".encode(), b"")
        with pytest.raises(PermissionDenied):
            await user.access.add_user("another")

        # A new kind for the same range replaces the former permission.
        await access.grant_permission(name, Permission("readwrite", f"{prefix}one".encode()))
        await access.revoke_permission(name, Permission.below(prefix, kind="read"))
        assert await access.permissions_of(name) == {Permission("readwrite", f"{prefix}one".encode())}
        assert await user.get(f"{prefix}one".encode()) is not None
        with pytest.raises(PermissionDenied):
            await user.count(prefix)

        await access.revoke_role(name, name)
        assert await access.roles_of(name) == ()
        with pytest.raises(PermissionDenied):
            await user.get(f"{prefix}one".encode())
        await access.grant_role(name, name)
        await access.delete_role(name)
        assert await access.roles_of(name) == ()
        with pytest.raises(PermissionDenied):
            await user.count(prefix)
        await access.delete_user(name)
        with pytest.raises(PermissionDenied):
            await user.count(prefix)


async def test_follower_copies_as_user_with_permission_for_source(
    etcd: Any, client: Client, prefix: str, tmp_path: Path
) -> None:
    """The benchmarks copy as the API server of a control plane, which may read its own prefix only."""
    access, name, source, target = client.access, f"copier{prefix}", f"{prefix}from/", f"{prefix}to/"
    await client.put(f"{source}one".encode(), b"value")
    await access.add_role(name)
    await access.grant_permission(name, Permission.below(source))
    await access.add_user(name)
    await access.grant_role(name, name)
    async with Client(etcd.url, credentials=etcd.credentials(name, tmp_path / "user")) as user:
        await Follower(Place(user, source), Place(client, target)).copy()
    item = await client.get(f"{target}one".encode())
    assert item is not None
    assert item.value == b"value"


async def test_access_raises_already_exists_or_not_found(client: Client, prefix: str) -> None:
    access = client.access
    await access.add_user(prefix)
    await access.add_role(prefix)
    for call in (access.add_user, access.add_role):
        with pytest.raises(AlreadyExists):
            await call(prefix)
    with pytest.raises(NotFound):
        await access.revoke_role(prefix, prefix)
    with pytest.raises(NotFound):
        await access.revoke_permission(prefix, Permission.below("/x/"))
    await access.delete_user(prefix)
    await access.delete_role(prefix)
    for call in (access.delete_user, access.delete_role):
        with pytest.raises(NotFound):
            await call(prefix)
    with pytest.raises(NotFound):
        await access.grant_role(prefix, prefix)
