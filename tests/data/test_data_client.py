"""Keys and values in a real etcd."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kplane.binaries.upstreams import ETCD
from kplane.data import MAX_OPERATIONS, Client, Compacted, Delete, EtcdError, InvalidPrefix, Put
from kplane.data._proto import etcd_pb2 as pb
from kplane.data.rpc import ALARM

pytestmark = pytest.mark.integration


async def _fill(client: Client, prefix: str, *, count: int) -> list[bytes]:
    keys = [f"{prefix}{number:04}".encode() for number in range(count)]
    for start in range(0, count, MAX_OPERATIONS):
        await client.apply([Put(key, b"value of " + key) for key in keys[start : start + MAX_OPERATIONS]])
    return keys


async def test_a_key_is_there_with_the_revision_that_wrote_it_or_is_not_there(client: Client, prefix: str) -> None:
    key = f"{prefix}key".encode()
    assert await client.get(key) is None
    revision = await client.put(key, b"\0\xff")
    found = await client.get(key)
    assert found is not None
    assert (found.key, found.value, found.revision) == (key, b"\0\xff", revision)


async def test_the_version_is_that_of_the_member(client: Client) -> None:
    assert await client.version() == ETCD.version


async def test_pages_are_of_one_revision_whatever_is_written_meanwhile(client: Client, prefix: str) -> None:
    keys = await _fill(client, prefix, count=250)
    pages = []
    async for page in client.pages(prefix, size=100):
        pages.append(page)
        await client.apply([Delete(keys[-len(pages)]), Put(keys[200], b"changed"), Put(keys[0] + b"new", b"")])
    assert [len(page.items) for page in pages] == [100, 100, 50]
    assert len({page.revision for page in pages}) == 1
    assert [(item.key, item.value) for page in pages for item in page.items] == [(k, b"value of " + k) for k in keys]


async def test_a_prefix_without_keys_is_one_empty_page(client: Client, prefix: str) -> None:
    assert [page.items async for page in client.pages(prefix)] == [()]


async def test_pages_of_a_compacted_revision_are_an_error(client: Client, prefix: str) -> None:
    keys = await _fill(client, prefix, count=20)
    pages = client.pages(prefix, size=10)
    await anext(pages)
    revision = await client.put(keys[0], b"later")
    await client.compact(revision)
    with pytest.raises(Compacted):
        await anext(pages)


async def test_compact_keeps_its_revision_and_refuses_earlier_ones(client: Client, prefix: str) -> None:
    key = f"{prefix}key".encode()
    earlier, revision = await client.put(key, b"1"), await client.put(key, b"2")
    await client.put(key, b"3")
    for _ in range(2):
        await client.compact(revision)
    pages = [page async for page in client.pages(prefix, revision=revision)]
    assert [item.value for page in pages for item in page.items] == [b"2"]
    with pytest.raises(Compacted):
        await anext(client.pages(prefix, revision=earlier))


async def test_a_transaction_is_made_as_a_whole_or_not_at_all(client: Client, prefix: str) -> None:
    keys = await _fill(client, prefix, count=3)
    revision = (await client.apply([Put(keys[0], b"new"), Delete(keys[1])])).revision
    found = [(item.key, item.value, item.revision) async for page in client.pages(prefix) for item in page.items]
    assert found[0] == (keys[0], b"new", revision)
    assert [key for key, _, _ in found] == [keys[0], keys[2]]

    with pytest.raises(EtcdError, match="duplicate key"):
        await client.apply([Put(keys[2], b"lost"), Put(keys[1], b""), Put(keys[1], b"")])
    assert [(item.key, item.value, item.revision) async for p in client.pages(prefix) for item in p.items] == found


async def test_deleting_a_prefix_leaves_its_neighbours(client: Client, prefix: str) -> None:
    mine, *others = [f"{prefix}{name}/" for name in ("a", "aa", "a-b", "a0", "A")]
    for each in (mine, *others):
        await _fill(client, each, count=5)
    await client.put(mine.rstrip("/").encode(), b"beside")
    assert await client.count(prefix) == 26
    assert await client.delete_prefix(mine) == 5
    assert [await client.count(each) for each in (mine, *others)] == [0, 5, 5, 5, 5]
    assert await client.count(prefix) == 21
    assert await client.delete_prefix(mine) == 0


@pytest.mark.parametrize("bad", ["", "/", "/tests", "tests/"])
async def test_no_call_takes_what_is_no_prefix(client: Client, bad: str) -> None:
    calls: list[Callable[[], object]] = [lambda: client.count(bad), lambda: client.delete_prefix(bad)]
    for call in calls:
        with pytest.raises(InvalidPrefix):
            await call()  # type: ignore[misc]
    with pytest.raises(InvalidPrefix):
        await anext(client.pages(bad))


async def test_an_alarm_is_a_problem(client: Client) -> None:
    assert await client.problem() is None

    async def alarm(action: pb.AlarmRequest.AlarmAction) -> None:
        request = pb.AlarmRequest(action=action, alarm=pb.NOSPACE)
        await client.connection.call(ALARM, request, timeout_seconds=10)

    await alarm(pb.AlarmRequest.ACTIVATE)
    try:
        assert await client.problem() == f"etcd at {client.endpoint} raised NOSPACE"
    finally:
        await alarm(pb.AlarmRequest.DEACTIVATE)
    assert await client.problem() is None
