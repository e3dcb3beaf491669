"""An API server that may not write yet, or no longer: it serves what is there, and its etcd takes nothing of it."""

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


async def test_an_api_server_starts_on_a_copy_before_it_may_write_and_then_writes_at_once(
    tenant: Any, shared_etcd: Any, start_tenant: Callable[..., Awaitable[Any]], path: str, eventually: Any
) -> None:
    keyspace, standing = shared_etcd.keyspace, "standing"
    async with shared_etcd.client("root") as root, Client(tenant.administrator, field_manager="kplane") as source:
        await source.create(CONFIG_MAPS, _config_map("copied"))
        follower = Follower(Place(root, key_prefix(standing)), Place(root, key_prefix(path)))
        async with following(follower):
            started = await start_tenant(path, read_only=True)
            async with Client(started.administrator, field_manager="kplane") as target:
                await source.create(CONFIG_MAPS, _config_map("followed"))
                await eventually(lambda: target.get(CONFIG_MAPS, "followed", namespace="default"))
                assert len((await target.list(NAMESPACES)).items) >= 4
                with pytest.raises(ApiError):
                    await target.create(CONFIG_MAPS, _config_map("refused"))

                try:
                    await keyspace.grant(standing, prefix=key_prefix(standing), read_only=True)
                    with pytest.raises(ApiError):
                        await source.create(CONFIG_MAPS, _config_map("late"))
                    assert (await source.get(CONFIG_MAPS, "followed", namespace="default"))["data"] == {
                        "of": "followed"
                    }
                    assert (await follower.catch_up()).equal
                    await keyspace.grant(path, prefix=key_prefix(path))
                    await target.create(CONFIG_MAPS, _config_map("moved"))
                finally:
                    await keyspace.grant(standing, prefix=key_prefix(standing))
                await source.create(CONFIG_MAPS, _config_map("back"))


async def test_behind_a_fence_an_api_server_reads_on_and_without_it_writes_at_once(
    own_etcd: Any, start_tenant: Callable[..., Awaitable[Any]], path: str
) -> None:
    """As in the etcd of one control plane, which has no access control otherwise."""
    async with own_etcd.client("root") as root:
        await lift_fence(root)
        started = await start_tenant(path, etcd=own_etcd)
        async with Client(started.administrator, field_manager="kplane") as client:
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
