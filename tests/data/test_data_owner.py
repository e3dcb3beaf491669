"""Owners of prefixes in a real etcd: who may write and delete, also after a long pause in the middle."""

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
    """Stops before the transaction of a number, as a process does that gets no time, until the test lets it go on."""

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
    made: list[Frozen] = []

    def make(*, before: int) -> Frozen:
        made.append(Frozen(etcd, before=before))
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def fill(client: Client, prefix: str, *, count: int, value: bytes = b"value") -> None:
    for start in range(0, count, 100):
        await client.apply([Put(f"{prefix}{number:04}".encode(), value) for number in range(start, start + 100)])


async def stored(client: Client, prefix: str) -> dict[bytes, tuple[bytes, int]]:
    return {item.key: (item.value, item.revision) async for page in client.pages(prefix) for item in page.items}


async def test_an_owner_key_says_who_it_is_to_programs_and_people(client: Client, prefix: str) -> None:
    assert owner_key("/clusters/acme/") == b"/kplane.dev/owners/clusters/acme/"
    assert await owner_of(client, prefix) is None
    await claim(client, prefix, owner=ACME)
    assert await owner_of(client, prefix) == ACME
    found = await client.get(owner_key(prefix))
    assert found is not None
    assert found.value == b"6f1c acme"
    assert (ACME.label, Owner.decode(b"6f1c"), Owner("6f1c").encode()) == ("acme (6f1c)", Owner("6f1c"), b"6f1c")


async def test_a_claim_that_is_repeated_writes_nothing(client: Client, prefix: str) -> None:
    await claim(client, prefix, owner=ACME)
    written = await client.get(owner_key(prefix))
    await fill(client, prefix, count=100)
    await claim(client, prefix, owner=ACME)
    assert await client.get(owner_key(prefix)) == written


async def test_a_prefix_with_keys_and_no_owner_goes_only_to_one_that_is_known(client: Client, prefix: str) -> None:
    """The second is an upgrade: its keys were written by a version without owner keys."""
    await fill(client, prefix, count=100)
    with pytest.raises(NotOwned, match="has keys, and no owner") as refused:
        await claim(client, prefix, owner=ACME)
    assert (refused.value.prefix, refused.value.owner) == (prefix, None)
    assert await owner_of(client, prefix) is None
    await claim(client, prefix, owner=ACME, known=True)
    assert await owner_of(client, prefix) == ACME


@pytest.mark.parametrize("known", [True, False])
async def test_a_prefix_of_another_owner_stays_its_own(client: Client, prefix: str, *, known: bool) -> None:
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


async def test_of_two_that_claim_at_once_one_gets_it(client: Client, prefix: str, frozen: Any) -> None:
    late = frozen(before=1)
    claiming = asyncio.create_task(claim(late, prefix, owner=ACME))
    await late.reached.wait()
    await claim(client, prefix, owner=NAMESAKE)
    late.go.set()
    with pytest.raises(NotOwned):
        await claiming
    assert await owner_of(client, prefix) == NAMESAKE


async def test_keys_that_come_between_a_look_and_the_claim_are_not_claimed(
    client: Client, prefix: str, frozen: Any
) -> None:
    late = frozen(before=1)
    claiming = asyncio.create_task(claim(late, prefix, owner=ACME))
    await late.reached.wait()
    await fill(client, prefix, count=100)
    late.go.set()
    with pytest.raises(NotOwned):
        await claiming
    assert await owner_of(client, prefix) is None


async def test_what_is_taken_over_is_the_next_owners_and_may_be_taken_over_again_by_a_repetition(
    client: Client, prefix: str
) -> None:
    await fill(client, prefix, count=100)
    keys = await stored(client, prefix)
    await take_over(client, prefix, former=None, owner=ACME)
    await take_over(client, prefix, former=ACME, owner=NAMESAKE)
    # As a call does that got no answer, although it took effect.
    await take_over(client, prefix, former=ACME, owner=NAMESAKE)
    assert await owner_of(client, prefix) == NAMESAKE
    assert await stored(client, prefix) == keys


async def test_only_an_empty_prefix_is_released(client: Client, prefix: str) -> None:
    await claim(client, prefix, owner=ACME)
    await fill(client, prefix, count=100)
    assert not await release(client, prefix, owner=ACME)
    await client.delete_prefix(prefix)
    assert await release(client, prefix, owner=ACME)
    assert await owner_of(client, prefix) is None


async def test_a_write_that_is_bound_to_the_owner_is_made_as_long_as_it_owns(client: Client, prefix: str) -> None:
    """As a copy of a template does it."""
    key, guard = f"{prefix}key".encode(), [owned_by(prefix, ACME)]
    with pytest.raises(ConditionNotMet):
        await client.apply([Put(key, b"before")], only_if=guard)
    await claim(client, prefix, owner=ACME)
    await client.apply([Put(key, b"while")], only_if=guard)
    await take_over(client, prefix, former=ACME, owner=NAMESAKE)
    with pytest.raises(ConditionNotMet):
        await client.apply([Put(key, b"after")], only_if=guard)
    found = await client.get(key)
    assert found is not None
    assert found.value == b"while"


async def test_deletion_goes_by_chunks_and_takes_the_owner_key_last(
    client: Client, prefix: str, frozen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "_CHUNK", 100)
    beside = f"{prefix.rstrip('/')}0/"
    for each in (prefix, beside):
        await claim(client, each, owner=ACME)
        await fill(client, each, count=300)
    last = frozen(before=4)
    deleting = asyncio.create_task(delete_owned(last, prefix, owner=ACME))
    await last.reached.wait()
    assert await client.count(prefix) == 100
    assert await owner_of(client, prefix) == ACME
    last.go.set()
    assert await deleting == 300
    assert await client.count(prefix) == 0
    assert await owner_of(client, prefix) is None
    assert await client.count(beside) == 300
    assert await owner_of(client, beside) == ACME


@pytest.mark.parametrize("before", [1, 2, 3, 4])
async def test_who_was_frozen_in_a_deletion_deletes_nothing_of_a_namesake(
    client: Client, prefix: str, frozen: Any, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """Another process ends the deletion meanwhile, and a control plane of the same path is made."""
    monkeypatch.setattr(owners, "_CHUNK", 100)
    await claim(client, prefix, owner=ACME)
    await fill(client, prefix, count=300)
    late = frozen(before=before)
    deleting = asyncio.create_task(delete_owned(late, prefix, owner=ACME))
    await late.reached.wait()

    await delete_owned(client, prefix, owner=ACME)
    await claim(client, prefix, owner=NAMESAKE)
    await fill(client, prefix, count=300, value=b"of the namesake")
    theirs = await stored(client, prefix)

    late.go.set()
    with pytest.raises(NotOwned, match=r"belongs to acme \(9b22\)"):
        await deleting
    assert await stored(client, prefix) == theirs
    assert await owner_of(client, prefix) == NAMESAKE


async def test_a_tenant_neither_reads_nor_writes_its_owner_key(
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


async def test_prefixes_that_have_an_owner_are_listed(client: Client, prefix: str) -> None:
    one, other = f"{prefix}one/", f"{prefix}two/"
    assert await owned_below(client, prefix) == {}
    await claim(client, one, owner=ACME)
    await claim(client, other, owner=NAMESAKE)
    assert await owned_below(client, prefix) == {one: ACME, other: NAMESAKE}
    await release(client, other, owner=NAMESAKE)
    assert await owned_below(client, prefix) == {one: ACME}
