"""A copy that follows its source in real etcds contains all writes of users, also after interruptions."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kplane.data import (
    Client,
    Compacted,
    Comparison,
    ConditionNotMet,
    Credentials,
    DataError,
    Delete,
    Follower,
    Owner,
    Page,
    Place,
    Put,
    claim,
    open_place,
    owned_by,
)
from kplane.data.backlog import Backlog
from kplane.data.follow import LARGEST_ANSWER
from kplane.data.tally import Tally
from kplane.data.watch import Change, Changes, changes

from .conftest import Etcd

pytestmark = pytest.mark.integration

_KEYS = 300


@pytest.fixture
def places(client: Client, new_prefix: Callable[[], str]) -> tuple[Place, Place]:
    return Place(client, new_prefix()), Place(client, new_prefix())


@contextlib.asynccontextmanager
async def following(follower: Follower) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(follower.run())
        try:
            yield
        finally:
            task.cancel()


async def _fill(place: Place, *, count: int = _KEYS, value: bytes = b"first") -> None:
    for start in range(0, count, 100):
        await place.apply([Put(_key(place, number), value) for number in range(start, min(count, start + 100))])


def _key(place: Place, number: int) -> bytes:
    return f"{place.prefix}things/{number:05}".encode()


async def _content(place: Place) -> dict[bytes, bytes]:
    """Read all keys except the notes of followers."""
    head = place.prefix.encode()
    pages = place.client.pages(place.prefix)
    content = {item.key.removeprefix(head): item.value async for page in pages for item in page.items}
    return {key: value for key, value in content.items() if not key.startswith(b".follow")}


async def _change_at_random(place: Place, *, seed: int, times: int) -> None:
    chance = random.Random(seed)
    for count in range(times):
        keys = [_key(place, number) for number in chance.sample(range(_KEYS), chance.randint(1, 5))]
        value = f"{seed} {count}".encode()
        await place.apply([Delete(key) if chance.random() < 0.3 else Put(key, value) for key in keys])


async def test_follower_copies_writes_during_and_after_copy(places: tuple[Place, Place]) -> None:
    source, target = places
    await _fill(source)
    follower = Follower(source, target)
    async with asyncio.TaskGroup() as tasks:
        writers = [tasks.create_task(_change_at_random(source, seed=seed, times=60)) for seed in range(4)]
        await follower.copy()
        async with following(follower):
            await asyncio.wait(writers)
            comparison = await follower.catch_up()
            assert comparison.equal
            assert comparison.source == comparison.target == (await follower.verify()).source
    await follower.forget()
    assert await _content(target) == await _content(source) != {}


async def test_copy_into_partial_target_writes_only_differences(
    places: tuple[Place, Place],
) -> None:
    source, target = places
    await _fill(source)
    await _fill(target, count=200)
    await target.apply([Put(_key(target, 7), b"wrong"), Put(_key(target, 100_000), b"gone"), Delete(_key(target, 8))])
    follower = Follower(source, target)
    await follower.copy()
    assert await _content(target) == await _content(source)
    # 100 absent keys, a key with a wrong value, a deleted key, and a key to delete.
    assert follower.keys == 103


async def test_follower_detects_foreign_writes_into_copy(places: tuple[Place, Place]) -> None:
    source, target = places
    await _fill(source, count=10)
    follower = Follower(source, target)
    await follower.copy()
    async with following(follower):
        assert (await follower.catch_up()).equal
        await target.apply([Put(_key(target, 3), b"by somebody else")])
        comparison = await follower.catch_up()
        assert (comparison.equal, comparison.source.count, comparison.target.count) == (False, 10, 10)
        assert not (await follower.verify()).equal


async def test_copy_keeps_neighbours_and_own_records_of_api_servers(
    client: Client, new_prefix: Callable[[], str]
) -> None:
    first, second = new_prefix(), new_prefix()
    source, target = Place(client, f"{first}a/"), Place(client, f"{second}a/")
    neighbours = (f"{first}a-b/key".encode(), f"{second}a-b/key".encode())
    own_keys = [b"masterleases/10.0.0.1", b"leases/kube-system/apiserver-abc", b"services/endpoints/default/kubernetes"]
    copied_keys = [b"services/endpoints/default/kubernetes-too", b"leases/kube-system/scheduler"]
    for key in neighbours:
        await client.put(key, b"beside")
    await source.apply([Put(source.prefix.encode() + key, b"of the source") for key in own_keys + copied_keys])
    await target.apply([Put(target.prefix.encode() + key, b"of the target") for key in own_keys])
    follower = Follower(source, target)
    await follower.copy()
    async with following(follower):
        await source.apply(
            [Put(source.prefix.encode() + own_keys[0], b"again"), Delete(source.prefix.encode() + own_keys[1])]
        )
        assert (await follower.catch_up()).equal
    await follower.forget()
    assert await _content(target) == {
        **dict.fromkeys(own_keys, b"of the target"),
        **dict.fromkeys(copied_keys, b"of the source"),
    }
    assert [item.value for key in neighbours if (item := await client.get(key))] == [b"beside", b"beside"]


async def test_key_with_lease_expires_in_copy_with_its_source(
    places: tuple[Place, Place], eventually: Callable[..., Any]
) -> None:
    source, target = places
    lease = await source.client.grant_lease(600)
    await source.apply([Put(_key(source, 1), b"copied", lease=lease), Put(_key(source, 2), b"stays")])
    follower = Follower(source, target)
    await follower.copy()
    short_lease = await source.client.grant_lease(2)
    async with following(follower):
        await source.apply([Put(_key(source, 3), b"followed", lease=short_lease)])
        assert (await follower.catch_up()).target.count == 3
        item = await target.client.get(_key(target, 1))
        assert item is not None
        assert 500 < await target.client.lease_seconds(item.lease) <= 660
        # The key expires with the key of the source, and not by its own lease.
        await eventually(follower.catch_up, lambda found: found.source.count == 2)
        assert (await follower.catch_up()).equal
    await follower.forget()
    assert set(await _content(target)) == {b"things/00001", b"things/00002"}


async def test_follower_resumes_after_restart_of_etcd(
    other: Etcd, client: Client, new_prefix: Callable[[], str], eventually: Callable[..., Any]
) -> None:
    source = Place(client, new_prefix())
    await _fill(source, count=50)
    async with Client(other.url, credentials=Credentials.in_directory(other.directory / "root")) as target_client:
        target = Place(target_client, new_prefix())
        follower = Follower(source, target)
        await follower.copy()
        task = asyncio.create_task(follower.run())
        await follower.catch_up()
        other.stop()
        catch_up_task = asyncio.create_task(follower.catch_up())
        await _change_at_random(source, seed=1, times=5)
        # Waiting calls end with the follower, and do not wait forever.
        for call in (task, catch_up_task, follower.catch_up()):
            with pytest.raises(DataError):
                await call
        await _change_at_random(source, seed=2, times=5)
        other.start()
        await eventually(target_client.problem, lambda problem: problem is None)
        async with following(follower):
            assert (await follower.catch_up()).equal
        assert (await follower.verify()).equal


async def test_follower_raises_compacted_and_recovers_by_copy(places: tuple[Place, Place]) -> None:
    source, target = places
    await _fill(source, count=20)
    follower = Follower(source, target)
    await follower.copy()
    revision = await source.client.put(_key(source, 1), b"later")
    await source.client.compact(revision)
    with pytest.raises(Compacted):
        await follower.run()
    await follower.copy()
    async with following(follower):
        assert (await follower.catch_up()).equal
    assert (await _content(target))[b"things/00001"] == b"later"


async def test_copy_interrupted_by_compaction_is_completed_by_next_copy(
    places: tuple[Place, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = places
    await _fill(source)
    read = source.client.pages
    compacted = 0

    async def pages(prefix: str) -> AsyncIterator[Page]:
        nonlocal compacted
        async for page in read(prefix, size=50):
            yield page
            if prefix == source.prefix and not compacted:
                compacted = await source.client.put(_key(source, 1), b"later")
                await source.client.compact(compacted)

    monkeypatch.setattr(source.client, "pages", pages)
    follower = Follower(source, target)
    with pytest.raises(Compacted):
        await follower.copy()
    key_count = follower.keys
    assert 0 < key_count < _KEYS
    await follower.copy()
    # An existing key is written again only if its value has changed.
    assert follower.keys == _KEYS + 1
    assert await _content(target) == await _content(source)
    async with following(follower):
        assert (await follower.catch_up()).equal


async def test_concurrent_catch_up_calls_find_their_marks(places: tuple[Place, Place]) -> None:
    source, target = places
    await _fill(source, count=10)
    follower = Follower(source, target)
    await follower.copy()
    async with following(follower):
        for _ in range(20):
            async with asyncio.timeout(60):
                assert all(
                    comparison.equal for comparison in await asyncio.gather(*(follower.catch_up() for _ in range(6)))
                )
    await follower.forget()
    marks = {key async for page in source.client.pages(source.prefix) for key in [item.key for item in page.items]}
    assert marks == {_key(source, number) for number in range(10)}


async def test_replaced_follower_can_neither_run_nor_close(places: tuple[Place, Place]) -> None:
    """A former leader may return from a network partition after the next leader has begun."""
    source, target = places
    await _fill(source, count=10)
    former, present = Follower(source, target), Follower(source, target)
    await former.copy()
    await present.copy()
    await source.apply([Put(_key(source, 1), b"changed")])
    with pytest.raises(ConditionNotMet):
        await former.run()
    with pytest.raises(ConditionNotMet):
        await former.close()
    async with following(present):
        assert (await present.catch_up()).equal


async def test_copy_into_closed_place_is_refused(places: tuple[Place, Place]) -> None:
    source, target = places
    await _fill(source, count=10)
    follower = Follower(source, target)
    await follower.copy()
    await follower.close()
    await target.apply([Put(_key(target, 1), b"written by the users of the new home")])
    before = await _content(target)
    for stale_follower in (follower, Follower(source, target)):
        with pytest.raises(ConditionNotMet):
            await stale_follower.copy()
    assert await _content(target) == before
    await open_place(target)
    await follower.copy()
    assert await _content(target) == await _content(source)


async def test_changes_are_split_into_groups_for_reader_far_behind(places: tuple[Place, Place]) -> None:
    """In a single answer, the reader would hold all values that tenants have written meanwhile."""
    source, _ = places
    before = await source.client.revision()
    size, number = 100_000, 300
    for start in range(0, number, 2):
        await source.apply([Put(_key(source, index), bytes(size)) for index in (start, start + 1)])
    seen = list[bytes]()
    async with contextlib.aclosing(changes(source.client, source.prefix, after=before)) as groups:
        async for group in groups:
            assert group.size < 5_000_000
            # A group has both changes of a revision.
            assert len(group.items) % 2 == 0
            seen += [change.key for change in group.items]
            if len(seen) == number:
                break
    assert seen == [_key(source, index) for index in range(number)]


async def test_large_values_are_copied_in_answers_of_bounded_size(
    etcd: Etcd, new_prefix: Callable[[], str], client: Client
) -> None:
    """Tenants determine the size of their values."""
    files = Credentials.in_directory(etcd.directory / "root")
    async with Client(etcd.url, credentials=files, receive_at_most=LARGEST_ANSWER) as bounded_client:
        source, target = Place(bounded_client, new_prefix()), Place(bounded_client, new_prefix())
        for number in range(12):
            await source.apply([Put(_key(source, number), bytes([number]) * (1 << 20))])
        follower = Follower(source, target)
        await follower.copy()
        await follower.verify()
        async with following(follower):
            for number in range(12):
                await source.apply([Put(_key(source, number), bytes([number + 1]) * (1 << 20))])
            comparison = await follower.catch_up()
            assert (comparison.equal, comparison.source.count) == (True, 12)
    for place in (source, target):
        await client.delete_prefix(place.prefix)


async def test_backlog_blocks_put_while_it_holds_many_bytes() -> None:
    backlog, group = Backlog(), Changes(1, (Change(b"key", bytes(3 << 20)),))
    for _ in range(3):
        await backlog.put(group)
    put_task = asyncio.create_task(backlog.put(group))
    await asyncio.sleep(0)
    assert not put_task.done()
    assert len(await backlog.take()) == 3
    await put_task
    assert await backlog.take() == [group]
    assert backlog.empty


async def test_copy_into_place_of_another_owner_is_refused(places: tuple[Place, Place]) -> None:
    source, target = places
    await _fill(source, count=3)
    await claim(target.client, target.prefix, owner=Owner("1"))
    follower = Follower(source, Place(target.client, target.prefix, only_if=(owned_by(target.prefix, Owner("2")),)))
    with pytest.raises(ConditionNotMet):
        await follower.copy()
    assert await _content(target) == {}


def test_comparison_is_equal_only_for_same_keys_and_values() -> None:
    source_tally, target_tally = Tally(), Tally()
    for key, value in ((b"a", b"1"), (b"b", b"2")):
        source_tally.put(key, value)
    for key, value in ((b"b", b"2"), (b"a", b"0"), (b"a", b"1")):
        target_tally.put(key, value)
    assert Comparison(source_tally, target_tally).equal
    target_tally.put(b"a", b"2")
    assert not Comparison(source_tally, target_tally).equal
    target_tally.put(b"a", b"1")
    before = Comparison(source_tally, target_tally)
    target_tally.delete(b"b")
    assert not Comparison(source_tally, target_tally).equal
    assert before.equal
    assert before.target.count == 2
