"""A fence in an etcd without access control: a user may only read for some time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kplane.data import (
    Client,
    Credentials,
    EtcdError,
    Follower,
    Permission,
    PermissionDenied,
    Place,
    fence,
    is_fenced,
    lift_fence,
    prepare_fence,
    seal,
)

from .conftest import Etcd
from .test_data_follow import following

pytestmark = pytest.mark.integration

_USER = "kube-apiserver"
_KEY = b"/registry/things/1"


async def test_fenced_user_can_only_read_until_fence_is_lifted(other: Etcd, tmp_path: Path) -> None:
    credentials = Credentials.in_directory(tmp_path / "root")
    async with (
        Client(other.url, credentials=credentials) as root,
        Client(other.url, credentials=other.credentials(_USER, tmp_path / "user")) as user,
    ):
        await user.put(_KEY, b"0")
        follower = Follower(Place(root, "/registry/"), Place(root, "/copy/"))
        await follower.copy()
        async with following(follower):
            for count in range(2):
                # The prepared users and roles have no effect before the fence.
                await prepare_fence(root, user=_USER)
                assert not await is_fenced(root)
                acknowledged = 0

                async def write() -> None:
                    nonlocal acknowledged
                    while True:
                        acknowledged = max(acknowledged, await user.put(_KEY, b"written"))

                writers = [asyncio.create_task(write()) for _ in range(8)]
                await fence(root, user=_USER)
                assert await is_fenced(root)
                item = await root.get(_KEY)
                for result in await asyncio.gather(*writers, return_exceptions=True):
                    assert isinstance(result, EtcdError)
                assert item is not None
                assert acknowledged <= item.revision
                assert await user.get(_KEY) == await root.get(_KEY) == item
                # The follower began before the fence.
                assert (await follower.catch_up()).equal

                await fence(root, user=_USER)
                with pytest.raises(PermissionDenied):
                    await user.put(_KEY, b"refused")
                with pytest.raises(PermissionDenied):
                    await user.access.disable()

                for _ in range(2):
                    await seal(root, user=_USER)
                with pytest.raises(PermissionDenied):
                    await user.get(_KEY)
                await fence(root, user=_USER)
                assert await user.get(_KEY) == item

                await lift_fence(root)
                await lift_fence(root)
                await user.put(_KEY, str(count).encode())
            assert (await follower.catch_up()).equal


async def test_fence_completes_partial_preparation(other: Etcd, tmp_path: Path) -> None:
    credentials = Credentials.in_directory(tmp_path / "root")
    async with (
        Client(other.url, credentials=credentials) as root,
        Client(other.url, credentials=other.credentials(_USER, tmp_path / "user")) as user,
    ):
        access = root.access
        steps: list[Callable[[], Awaitable[None]]] = [
            lambda: access.add_user("root"),
            lambda: access.add_role("root"),
            lambda: access.grant_role("root", "root"),
            lambda: access.add_user(_USER),
            # A foreign grant, by which the user could write.
            lambda: access.grant_role(_USER, "root"),
            lambda: access.add_role("kplane-reader"),
            lambda: access.grant_permission("kplane-reader", Permission.below("/registry/")),
        ]
        for number in range(len(steps) + 1):
            for step in steps[:number]:
                await step()
            await fence(root, user=_USER)
            with pytest.raises(PermissionDenied):
                await user.put(_KEY, b"refused")
            assert await user.get(_KEY) is None
            assert await access.permissions_of("kplane-reader") == {Permission.everything(kind="read")}
            await lift_fence(root)
            for name in (_USER, "root"):
                await access.delete_user(name)
            for name in ("kplane-reader", "root"):
                await access.delete_role(name)
