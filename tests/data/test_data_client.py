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


async def test_get_returns_item_with_revision_or_none(client: Client, prefix: str) -> None:
    key = f"{prefix}key".encode()
    assert await client.get(key) is None
    revision = await client.put(key, b"\0\xff")
    item = await client.get(key)
    assert item is not None
    assert (item.key, item.value, item.revision) == (key, b"\0\xff", revision)


async def test_version_returns_version_of_member(client: Client) -> None:
    assert await client.version() == ETCD.version


async def test_pages_read_one_revision_despite_concurrent_writes(client: Client, prefix: str) -> None:
    keys = await _fill(client, prefix, count=250)
    pages = []
    async for page in client.pages(prefix, size=100):
        pages.append(page)
        await client.apply([Delete(keys[-len(pages)]), Put(keys[200], b"changed"), Put(keys[0] + b"new", b"")])
    assert [len(page.items) for page in pages] == [100, 100, 50]
    assert len({page.revision for page in pages}) == 1
    assert [(item.key, item.value) for page in pages for item in page.items] == [(k, b"value of " + k) for k in keys]


async def test_pages_of_empty_prefix_are_one_empty_page(client: Client, prefix: str) -> None:
    assert [page.items async for page in client.pages(prefix)] == [()]


async def test_pages_raise_compacted_for_compacted_revision(client: Client, prefix: str) -> None:
    keys = await _fill(client, prefix, count=20)
    pages = client.pages(prefix, size=10)
    await anext(pages)
    revision = await client.put(keys[0], b"later")
    await client.compact(revision)
    with pytest.raises(Compacted):
        await anext(pages)


async def test_compact_keeps_its_revision_and_removes_earlier_revisions(client: Client, prefix: str) -> None:
    key = f"{prefix}key".encode()
    earlier, revision = await client.put(key, b"1"), await client.put(key, b"2")
    await client.put(key, b"3")
    for _ in range(2):
        await client.compact(revision)
    pages = [page async for page in client.pages(prefix, revision=revision)]
    assert [item.value for page in pages for item in page.items] == [b"2"]
    with pytest.raises(Compacted):
        await anext(client.pages(prefix, revision=earlier))


async def test_apply_is_atomic(client: Client, prefix: str) -> None:
    keys = await _fill(client, prefix, count=3)
    revision = (await client.apply([Put(keys[0], b"new"), Delete(keys[1])])).revision
    items = [(item.key, item.value, item.revision) async for page in client.pages(prefix) for item in page.items]
    assert items[0] == (keys[0], b"new", revision)
    assert [key for key, _, _ in items] == [keys[0], keys[2]]

    with pytest.raises(EtcdError, match="duplicate key"):
        await client.apply([Put(keys[2], b"lost"), Put(keys[1], b""), Put(keys[1], b"")])
    assert [(item.key, item.value, item.revision) async for p in client.pages(prefix) for item in p.items] == items


async def test_delete_prefix_keeps_neighbouring_prefixes(client: Client, prefix: str) -> None:
    deleted_prefix, *neighbours = [f"{prefix}{name}/" for name in ("a", "aa", "a-b", "a0", "A")]
    for path in (deleted_prefix, *neighbours):
        await _fill(client, path, count=5)
    await client.put(deleted_prefix.rstrip("/").encode(), b"beside")
    assert await client.count(prefix) == 26
    assert await client.delete_prefix(deleted_prefix) == 5
    assert [await client.count(path) for path in (deleted_prefix, *neighbours)] == [0, 5, 5, 5, 5]
    assert await client.count(prefix) == 21
    assert await client.delete_prefix(deleted_prefix) == 0


@pytest.mark.parametrize("bad", ["", "/", "/tests", "tests/"])
async def test_client_refuses_invalid_prefix(client: Client, bad: str) -> None:
    calls: list[Callable[[], object]] = [lambda: client.count(bad), lambda: client.delete_prefix(bad)]
    for call in calls:
        with pytest.raises(InvalidPrefix):
            await call()  # type: ignore[misc]
    with pytest.raises(InvalidPrefix):
        await anext(client.pages(bad))


async def test_problem_returns_active_alarm(client: Client) -> None:
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
