"""Owners of prefixes in a real etcd: permissions to write and delete, also after a long pause of a process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kplane.data import (
    Client,
    ConditionNotMet,
    Credentials,
    NotOwned,
    Owner,
    Permission,
    PermissionDenied,
    Put,
    claim,
    delete_owned,
    owned_below,
    owned_by,
    owner_key,
    owner_of,
    release,
    take_over,
)
from kplane.data import owner as owners
from kplane.data.rpc import TXN

from .conftest import Etcd

pytestmark = pytest.mark.integration

ACME = Owner("6f1c", "acme")
NAMESAKE = Owner("9b22", "acme")


class Frozen(Client):
    """Pauses before transaction number `before` until the test resumes it, like a process without CPU time."""

    def __init__(self, etcd: Etcd, *, before: int) -> None:
        super().__init__(etcd.url, credentials=Credentials.in_directory(etcd.directory / "root"))
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        self._before = before

    async def _call(self, method: Any, request: Any) -> Any:
        if method is TXN:
            self._before -= 1
            if self._before == 0:
                self.reached.set()
                await self.go.wait()
        return await super()._call(method, request)


@pytest.fixture
async def frozen(etcd: Etcd) -> AsyncIterator[Callable[..., Frozen]]:
    clients: list[Frozen] = []

    def make(*, before: int) -> Frozen:
        clients.append(Frozen(etcd, before=before))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


async def fill(client: Client, prefix: str, *, count: int, value: bytes = b"value") -> None:
    for start in range(0, count, 100):
        await client.apply([Put(f"{prefix}{number:04}".encode(), value) for number in range(start, start + 100)])


async def stored(client: Client, prefix: str) -> dict[bytes, tuple[bytes, int]]:
    return {item.key: (item.value, item.revision) async for page in client.pages(prefix) for item in page.items}


async def test_owner_key_stores_uid_and_name_of_owner(client: Client, prefix: str) -> None:
    assert owner_key("/clusters/acme/") == b"/kplane.dev/owners/clusters/acme/"
    assert await owner_of(client, prefix) is None
    await claim(client, prefix, owner=ACME)
    assert await owner_of(client, prefix) == ACME
    item = await client.get(owner_key(prefix))
    assert item is not None
    assert item.value == b"6f1c acme"
    assert (ACME.label, Owner.decode(b"6f1c"), Owner("6f1c").encode()) == ("acme (6f1c)", Owner("6f1c"), b"6f1c")


async def test_repeated_claim_does_not_write_owner_key(client: Client, prefix: str) -> None:
    await claim(client, prefix, owner=ACME)
    item = await client.get(owner_key(prefix))
    await fill(client, prefix, count=100)
    await claim(client, prefix, owner=ACME)
    assert await client.get(owner_key(prefix)) == item


async def test_claim_of_used_prefix_without_owner_requires_known(client: Client, prefix: str) -> None:
    """The second claim is an upgrade: a version without owner keys has written the keys."""
    await fill(client, prefix, count=100)
    with pytest.raises(NotOwned, match="has keys, and no owner") as caught:
        await claim(client, prefix, owner=ACME)
    assert (caught.value.prefix, caught.value.owner) == (prefix, None)
    assert await owner_of(client, prefix) is None
    await claim(client, prefix, owner=ACME, known=True)
    assert await owner_of(client, prefix) == ACME


@pytest.mark.parametrize("known", [True, False])
async def test_prefix_keeps_its_owner_after_attempts_of_others(client: Client, prefix: str, *, known: bool) -> None:
    await claim(client, prefix, owner=ACME)
    for attempt in (
        claim(client, prefix, owner=NAMESAKE, known=known),
        take_over(client, prefix, former=None, owner=NAMESAKE),
        take_over(client, prefix, former=Owner("other"), owner=NAMESAKE),
        delete_owned(client, prefix, owner=NAMESAKE),
    ):
        with pytest.raises(NotOwned, match=r"belongs to acme \(6f1c\)"):
            await attempt
    assert not await release(client, prefix, owner=NAMESAKE)
    assert await owner_of(client, prefix) == ACME


async def test_concurrent_claims_of_prefix_have_one_winner(client: Client, prefix: str, frozen: Any) -> None:
    slow_client = frozen(before=1)
    claim_task = asyncio.create_task(claim(slow_client, prefix, owner=ACME))
    await slow_client.reached.wait()
    await claim(client, prefix, owner=NAMESAKE)
    slow_client.go.set()
    with pytest.raises(NotOwned):
        await claim_task
    assert await owner_of(client, prefix) == NAMESAKE


async def test_claim_fails_when_keys_appear_after_check(client: Client, prefix: str, frozen: Any) -> None:
    slow_client = frozen(before=1)
    claim_task = asyncio.create_task(claim(slow_client, prefix, owner=ACME))
    await slow_client.reached.wait()
    await fill(client, prefix, count=100)
    slow_client.go.set()
    with pytest.raises(NotOwned):
        await claim_task
    assert await owner_of(client, prefix) is None


async def test_take_over_keeps_keys_and_may_be_repeated(client: Client, prefix: str) -> None:
    await fill(client, prefix, count=100)
    keys = await stored(client, prefix)
    await take_over(client, prefix, former=None, owner=ACME)
    await take_over(client, prefix, former=ACME, owner=NAMESAKE)
    # Repeats a call that took effect, but whose response was lost.
    await take_over(client, prefix, former=ACME, owner=NAMESAKE)
    assert await owner_of(client, prefix) == NAMESAKE
    assert await stored(client, prefix) == keys


async def test_release_requires_empty_prefix(client: Client, prefix: str) -> None:
    await claim(client, prefix, owner=ACME)
    await fill(client, prefix, count=100)
    assert not await release(client, prefix, owner=ACME)
    await client.delete_prefix(prefix)
    assert await release(client, prefix, owner=ACME)
    assert await owner_of(client, prefix) is None


async def test_write_with_owner_condition_requires_ownership(client: Client, prefix: str) -> None:
    """A copy of a template writes with this condition."""
    key, guard = f"{prefix}key".encode(), [owned_by(prefix, ACME)]
    with pytest.raises(ConditionNotMet):
        await client.apply([Put(key, b"before")], only_if=guard)
    await claim(client, prefix, owner=ACME)
    await client.apply([Put(key, b"while")], only_if=guard)
    await take_over(client, prefix, former=ACME, owner=NAMESAKE)
    with pytest.raises(ConditionNotMet):
        await client.apply([Put(key, b"after")], only_if=guard)
    item = await client.get(key)
    assert item is not None
    assert item.value == b"while"


async def test_delete_owned_works_in_chunks_and_deletes_owner_key_last(
    client: Client, prefix: str, frozen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "_CHUNK", 100)
    neighbour = f"{prefix.rstrip('/')}0/"
    for owned_prefix in (prefix, neighbour):
        await claim(client, owned_prefix, owner=ACME)
        await fill(client, owned_prefix, count=300)
    slow_client = frozen(before=4)
    deletion = asyncio.create_task(delete_owned(slow_client, prefix, owner=ACME))
    await slow_client.reached.wait()
    assert await client.count(prefix) == 100
    assert await owner_of(client, prefix) == ACME
    slow_client.go.set()
    assert await deletion == 300
    assert await client.count(prefix) == 0
    assert await owner_of(client, prefix) is None
    assert await client.count(neighbour) == 300
    assert await owner_of(client, neighbour) == ACME


@pytest.mark.parametrize("before", [1, 2, 3, 4])
async def test_paused_deletion_deletes_no_keys_of_new_owner(
    client: Client, prefix: str, frozen: Any, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """Another process completes the deletion meanwhile, and a control plane of the same path is created."""
    monkeypatch.setattr(owners, "_CHUNK", 100)
    await claim(client, prefix, owner=ACME)
    await fill(client, prefix, count=300)
    slow_client = frozen(before=before)
    deletion = asyncio.create_task(delete_owned(slow_client, prefix, owner=ACME))
    await slow_client.reached.wait()

    await delete_owned(client, prefix, owner=ACME)
    await claim(client, prefix, owner=NAMESAKE)
    await fill(client, prefix, count=300, value=b"of the namesake")
    items = await stored(client, prefix)

    slow_client.go.set()
    with pytest.raises(NotOwned, match=r"belongs to acme \(9b22\)"):
        await deletion
    assert await stored(client, prefix) == items
    assert await owner_of(client, prefix) == NAMESAKE


async def test_tenant_can_neither_read_nor_write_its_owner_key(
    client: Client, etcd: Etcd, prefix: str, tmp_path: Any
) -> None:
    await claim(client, prefix, owner=ACME)
    user = prefix.strip("/").replace("/", "-")
    await client.access.add_user(user)
    await client.access.add_role(user)
    await client.access.grant_permission(user, Permission.below(prefix))
    await client.access.grant_role(user, user)
    async with Client(etcd.url, credentials=etcd.credentials(user, tmp_path / "tenant")) as tenant:
        await tenant.put(f"{prefix}key".encode(), b"")
        for attempt in (
            owner_of(tenant, prefix),
            tenant.put(owner_key(prefix), NAMESAKE.encode()),
            take_over(tenant, prefix, former=ACME, owner=NAMESAKE),
            delete_owned(tenant, prefix, owner=ACME),
        ):
            with pytest.raises(PermissionDenied):
                await attempt
    assert await owner_of(client, prefix) == ACME


async def test_owned_below_lists_prefixes_with_owner(client: Client, prefix: str) -> None:
    first_prefix, second_prefix = f"{prefix}one/", f"{prefix}two/"
    assert await owned_below(client, prefix) == {}
    await claim(client, first_prefix, owner=ACME)
    await claim(client, second_prefix, owner=NAMESAKE)
    assert await owned_below(client, prefix) == {first_prefix: ACME, second_prefix: NAMESAKE}
    await release(client, second_prefix, owner=NAMESAKE)
    assert await owned_below(client, prefix) == {first_prefix: ACME}
