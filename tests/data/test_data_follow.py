"""A copy that follows its source, in real etcds: what users wrote is there, whatever happened meanwhile."""

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
    """Read all but the notes of followers."""
    head = place.prefix.encode()
    pages = place.client.pages(place.prefix)
    found = {item.key.removeprefix(head): item.value async for page in pages for item in page.items}
    return {key: value for key, value in found.items() if not key.startswith(b".follow")}


async def _change_at_random(place: Place, *, seed: int, times: int) -> None:
    chance = random.Random(seed)
    for count in range(times):
        keys = [_key(place, number) for number in chance.sample(range(_KEYS), chance.randint(1, 5))]
        written = f"{seed} {count}".encode()
        await place.apply([Delete(key) if chance.random() < 0.3 else Put(key, written) for key in keys])


async def test_what_is_written_while_it_is_copied_and_after_is_in_the_copy(places: tuple[Place, Place]) -> None:
    source, target = places
    await _fill(source)
    follower = Follower(source, target)
    async with asyncio.TaskGroup() as tasks:
        writers = [tasks.create_task(_change_at_random(source, seed=seed, times=60)) for seed in range(4)]
        await follower.copy()
        async with following(follower):
            await asyncio.wait(writers)
            found = await follower.catch_up()
            assert found.equal
            assert found.source == found.target == (await follower.verify()).source
    await follower.forget()
    assert await _content(target) == await _content(source) != {}


async def test_a_copy_that_was_cut_off_is_completed_and_only_what_differs_is_written(
    places: tuple[Place, Place],
) -> None:
    source, target = places
    await _fill(source)
    await _fill(target, count=200)
    await target.apply([Put(_key(target, 7), b"wrong"), Put(_key(target, 100_000), b"gone"), Delete(_key(target, 8))])
    follower = Follower(source, target)
    await follower.copy()
    assert await _content(target) == await _content(source)
    # 100 that were absent, one that was wrong, one that was deleted, and one that is deleted.
    assert follower.keys == 103


async def test_what_others_write_into_the_copy_is_found(places: tuple[Place, Place]) -> None:
    source, target = places
    await _fill(source, count=10)
    follower = Follower(source, target)
    await follower.copy()
    async with following(follower):
        assert (await follower.catch_up()).equal
        await target.apply([Put(_key(target, 3), b"by somebody else")])
        found = await follower.catch_up()
        assert (found.equal, found.source.count, found.target.count) == (False, 10, 10)
        assert not (await follower.verify()).equal


async def test_neighbours_and_what_an_api_server_says_of_itself_stay_as_they_are(
    client: Client, new_prefix: Callable[[], str]
) -> None:
    first, second = new_prefix(), new_prefix()
    source, target = Place(client, f"{first}a/"), Place(client, f"{second}a/")
    beside = (f"{first}a-b/key".encode(), f"{second}a-b/key".encode())
    own = [b"masterleases/10.0.0.1", b"leases/kube-system/apiserver-abc", b"services/endpoints/default/kubernetes"]
    kept = [b"services/endpoints/default/kubernetes-too", b"leases/kube-system/scheduler"]
    for key in beside:
        await client.put(key, b"beside")
    await source.apply([Put(source.prefix.encode() + key, b"of the source") for key in own + kept])
    await target.apply([Put(target.prefix.encode() + key, b"of the target") for key in own])
    follower = Follower(source, target)
    await follower.copy()
    async with following(follower):
        await source.apply([Put(source.prefix.encode() + own[0], b"again"), Delete(source.prefix.encode() + own[1])])
        assert (await follower.catch_up()).equal
    await follower.forget()
    assert await _content(target) == {
        **dict.fromkeys(own, b"of the target"),
        **dict.fromkeys(kept, b"of the source"),
    }
    assert [found.value for key in beside if (found := await client.get(key))] == [b"beside", b"beside"]


async def test_a_key_ends_in_the_copy_when_it_ends_in_the_source(
    places: tuple[Place, Place], eventually: Callable[..., Any]
) -> None:
    source, target = places
    lease = await source.client.grant_lease(600)
    await source.apply([Put(_key(source, 1), b"copied", lease=lease), Put(_key(source, 2), b"stays")])
    follower = Follower(source, target)
    await follower.copy()
    short = await source.client.grant_lease(2)
    async with following(follower):
        await source.apply([Put(_key(source, 3), b"followed", lease=short)])
        assert (await follower.catch_up()).target.count == 3
        copied = await target.client.get(_key(target, 1))
        assert copied is not None
        assert 500 < await target.client.lease_seconds(copied.lease) <= 660
        # It ends with the key of the source, and not by a lease of its own.
        await eventually(follower.catch_up, lambda found: found.source.count == 2)
        assert (await follower.catch_up()).equal
    await follower.forget()
    assert set(await _content(target)) == {b"things/00001", b"things/00002"}


async def test_it_goes_on_where_it_was_after_etcd_was_away(
    other: Etcd, client: Client, new_prefix: Callable[[], str], eventually: Callable[..., Any]
) -> None:
    source = Place(client, new_prefix())
    await _fill(source, count=50)
    async with Client(other.url, credentials=Credentials.in_directory(other.directory / "root")) as there:
        target = Place(there, new_prefix())
        follower = Follower(source, target)
        await follower.copy()
        running = asyncio.create_task(follower.run())
        await follower.catch_up()
        other.stop()
        waits = asyncio.create_task(follower.catch_up())
        await _change_at_random(source, seed=1, times=5)
        # What waits ends with it, and does not wait for ever.
        for each in (running, waits, follower.catch_up()):
            with pytest.raises(DataError):
                await each
        await _change_at_random(source, seed=2, times=5)
        other.start()
        await eventually(there.problem, lambda problem: problem is None)
        async with following(follower):
            assert (await follower.catch_up()).equal
        assert (await follower.verify()).equal


async def test_without_its_history_the_source_is_copied_again(places: tuple[Place, Place]) -> None:
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


async def test_a_copy_that_meets_a_compaction_is_completed_by_the_next(
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
    begun = follower.keys
    assert 0 < begun < _KEYS
    await follower.copy()
    # What was there already is not written again, but for what changed since.
    assert follower.keys == _KEYS + 1
    assert await _content(target) == await _content(source)
    async with following(follower):
        assert (await follower.catch_up()).equal


async def test_calls_beside_each_other_do_not_hide_each_others_marks(places: tuple[Place, Place]) -> None:
    source, target = places
    await _fill(source, count=10)
    follower = Follower(source, target)
    await follower.copy()
    async with following(follower):
        for _ in range(20):
            async with asyncio.timeout(60):
                assert all(found.equal for found in await asyncio.gather(*(follower.catch_up() for _ in range(6))))
    await follower.forget()
    marks = {key async for page in source.client.pages(source.prefix) for key in [item.key for item in page.items]}
    assert marks == {_key(source, number) for number in range(10)}


async def test_a_follower_that_another_one_replaced_changes_nothing_any_more(places: tuple[Place, Place]) -> None:
    """A former leader may have been cut off, and come back when the next one has begun."""
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


async def test_nothing_is_copied_into_a_place_that_was_closed(places: tuple[Place, Place]) -> None:
    source, target = places
    await _fill(source, count=10)
    follower = Follower(source, target)
    await follower.copy()
    await follower.close()
    await target.apply([Put(_key(target, 1), b"written by the users of the new home")])
    before = await _content(target)
    for late in (follower, Follower(source, target)):
        with pytest.raises(ConditionNotMet):
            await late.copy()
    assert await _content(target) == before
    await open_place(target)
    await follower.copy()
    assert await _content(target) == await _content(source)


async def test_a_reader_that_is_far_behind_gets_the_changes_in_parts(places: tuple[Place, Place]) -> None:
    """Otherwise it would hold all values that tenants wrote meanwhile."""
    source, _ = places
    before = await source.client.revision()
    size, number = 100_000, 300
    for start in range(0, number, 2):
        await source.apply([Put(_key(source, each), bytes(size)) for each in (start, start + 1)])
    seen = list[bytes]()
    async with contextlib.aclosing(changes(source.client, source.prefix, after=before)) as groups:
        async for group in groups:
            assert group.size < 5_000_000
            # Both changes of a revision.
            assert len(group.items) % 2 == 0
            seen += [change.key for change in group.items]
            if len(seen) == number:
                break
    assert seen == [_key(source, each) for each in range(number)]


async def test_large_values_are_copied_in_answers_of_bounded_size(
    etcd: Etcd, new_prefix: Callable[[], str], client: Client
) -> None:
    """A tenant decides how large its values are."""
    files = Credentials.in_directory(etcd.directory / "root")
    async with Client(etcd.url, credentials=files, receive_at_most=LARGEST_ANSWER) as bounded:
        source, target = Place(bounded, new_prefix()), Place(bounded, new_prefix())
        for number in range(12):
            await source.apply([Put(_key(source, number), bytes([number]) * (1 << 20))])
        follower = Follower(source, target)
        await follower.copy()
        await follower.verify()
        async with following(follower):
            for number in range(12):
                await source.apply([Put(_key(source, number), bytes([number + 1]) * (1 << 20))])
            found = await follower.catch_up()
            assert (found.equal, found.source.count) == (True, 12)
    for place in (source, target):
        await client.delete_prefix(place.prefix)


async def test_changes_wait_in_etcd_while_many_bytes_wait_to_be_written() -> None:
    backlog, group = Backlog(), Changes(1, (Change(b"key", bytes(3 << 20)),))
    for _ in range(3):
        await backlog.put(group)
    late = asyncio.create_task(backlog.put(group))
    await asyncio.sleep(0)
    assert not late.done()
    assert len(await backlog.take()) == 3
    await late
    assert await backlog.take() == [group]
    assert backlog.empty


async def test_nothing_is_written_into_a_place_that_is_another_owners(places: tuple[Place, Place]) -> None:
    source, target = places
    await _fill(source, count=3)
    await claim(target.client, target.prefix, owner=Owner("1"))
    follower = Follower(source, Place(target.client, target.prefix, only_if=(owned_by(target.prefix, Owner("2")),)))
    with pytest.raises(ConditionNotMet):
        await follower.copy()
    assert await _content(target) == {}


def test_sides_are_equal_only_with_all_keys_and_values() -> None:
    one, other = Tally(), Tally()
    for key, value in ((b"a", b"1"), (b"b", b"2")):
        one.put(key, value)
    for key, value in ((b"b", b"2"), (b"a", b"0"), (b"a", b"1")):
        other.put(key, value)
    assert Comparison(one, other).equal
    other.put(b"a", b"2")
    assert not Comparison(one, other).equal
    other.put(b"a", b"1")
    before = Comparison(one, other)
    other.delete(b"b")
    assert not Comparison(one, other).equal
    assert before.equal
    assert before.target.count == 2
