"""An API server without write permission serves the existing objects, and etcd refuses its writes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from kplane.controlplane_operator.shared_etcd.keyspace import key_prefix
from kplane.data import Follower, PermissionDenied, Place, fence, lift_fence
from kplane.provider import ApiError, Client
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES

pytestmark = pytest.mark.integration


@contextlib.asynccontextmanager
async def following(follower: Follower) -> AsyncIterator[None]:
    await follower.copy()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(follower.run())
        try:
            yield
        finally:
            task.cancel()


def _config_map(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}, "data": {"of": name}}


async def test_api_server_starts_read_only_on_copy_and_writes_after_grant(
    tenant: Any, shared_etcd: Any, start_tenant: Callable[..., Awaitable[Any]], path: str, eventually: Any
) -> None:
    keyspace, source_path = shared_etcd.keyspace, "standing"
    async with shared_etcd.client("root") as root, Client(tenant.administrator, field_manager="kplane") as source:
        await source.create(CONFIG_MAPS, _config_map("copied"))
        follower = Follower(Place(root, key_prefix(source_path)), Place(root, key_prefix(path)))
        async with following(follower):
            copy = await start_tenant(path, read_only=True)
            async with Client(copy.administrator, field_manager="kplane") as target:
                await source.create(CONFIG_MAPS, _config_map("followed"))
                await eventually(lambda: target.get(CONFIG_MAPS, "followed", namespace="default"))
                assert len((await target.list(NAMESPACES)).items) >= 4
                with pytest.raises(ApiError):
                    await target.create(CONFIG_MAPS, _config_map("refused"))

                try:
                    await keyspace.grant(source_path, prefix=key_prefix(source_path), read_only=True)
                    with pytest.raises(ApiError):
                        await source.create(CONFIG_MAPS, _config_map("late"))
                    assert (await source.get(CONFIG_MAPS, "followed", namespace="default"))["data"] == {
                        "of": "followed"
                    }
                    assert (await follower.catch_up()).equal
                    await keyspace.grant(path, prefix=key_prefix(path))
                    await target.create(CONFIG_MAPS, _config_map("moved"))
                finally:
                    await keyspace.grant(source_path, prefix=key_prefix(source_path))
                await source.create(CONFIG_MAPS, _config_map("back"))


async def test_fence_blocks_writes_but_not_reads_until_it_is_lifted(
    own_etcd: Any, start_tenant: Callable[..., Awaitable[Any]], path: str
) -> None:
    """The etcd of a single control plane has no access control apart from the fence."""
    async with own_etcd.client("root") as root:
        await lift_fence(root)
        tenant = await start_tenant(path, etcd=own_etcd)
        async with Client(tenant.administrator, field_manager="kplane") as client:
            await client.create(CONFIG_MAPS, _config_map("before"))
            await fence(root, user=path)
            assert (await client.get(CONFIG_MAPS, "before", namespace="default"))["data"] == {"of": "before"}
            assert len((await client.list(NAMESPACES)).items) >= 4
            with pytest.raises(ApiError):
                await client.create(CONFIG_MAPS, _config_map("refused"))
            with pytest.raises(PermissionDenied):
                async with own_etcd.client(path) as user:
                    await user.put(f"{key_prefix(path)}key".encode(), b"")
            await lift_fence(root)
            await client.create(CONFIG_MAPS, _config_map("after"))
