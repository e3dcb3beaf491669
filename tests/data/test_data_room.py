"""Copies into an etcd with a small quota stop before other tenants would be unable to write."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kplane.data import (
    MOST_RAISED,
    Client,
    Credentials,
    Follower,
    NoRoom,
    Owner,
    Pair,
    Place,
    check_room,
    claim,
    disarm,
    raise_revision,
    rpc,
    write_copy,
)
from kplane.data._proto import etcd_pb2 as pb
from kplane.data.room import Room, room_in
from kplane.pki.primitives import create_authority

from .conftest import Etcd, answering

if TYPE_CHECKING:
    from kplane.binaries.programs import Binaries

pytestmark = pytest.mark.integration

_NUMBERS = itertools.count()
_QUOTA = 64 << 20
_OWNER = Owner("5b1c4b8e-7a0e-4b8e-9d55-0a6d2f1c7e11", "copy")
_TARGET, _NEIGHBOUR = "/clusters/copy/", b"/clusters/other/configmaps/a/b"


@pytest.fixture
async def small(binaries: Binaries, tmp_path: Path, hold_port: Callable[[], int]) -> AsyncIterator[Client]:
    """A client of an etcd with a quota of 64 MiB."""
    etcd = Etcd(binaries.path("etcd"), tmp_path, hold_port(), flags=(f"--quota-backend-bytes={_QUOTA}",))
    etcd.start()
    try:
        async with Client(etcd.url, credentials=etcd.credentials("root", tmp_path / "root")) as client:
            await answering(client)
            yield client
    finally:
        etcd.stop()


async def _fill(client: Client, prefix: str, *, count: int) -> None:
    """Write `count` MiB. An etcd that commits rarely can accept more MiB than its quota."""
    for _ in range(count):
        await client.put(f"{prefix}configmaps/a/{next(_NUMBERS):04}".encode(), bytes(1 << 20))


async def _pairs(*, count: int) -> AsyncIterator[Iterable[Pair]]:
    for number in range(count):
        yield [(f"configmaps/a/{number:03}".encode(), bytes(1 << 20))]


async def test_follower_stops_before_the_etcd_is_full(small: Client, client: Client, prefix: str) -> None:
    await _fill(client, prefix, count=70)
    follower = Follower(Place(client, prefix), Place(small, _TARGET))
    with pytest.raises(NoRoom, match=r"uses \d+ bytes of its quota of 67108864.*may fill 90% of it; delete data there"):
        await follower.copy()
    # The follower has written some keys, and the neighbour can still write.
    written = follower.keys
    assert 0 < written < 60
    await small.put(_NEIGHBOUR, b"written")
    assert await small.problem() is None
    await client.delete_prefix(prefix)


async def test_copy_without_room_deletes_its_keys(small: Client) -> None:
    await claim(small, _TARGET, owner=_OWNER)
    for _ in range(2):
        with pytest.raises(NoRoom):
            await write_copy(small, _pairs(count=70), _TARGET, owner=_OWNER)
        # Only the mark of the unfinished copy is left.
        assert await small.count(_TARGET) == 1
        assert await small.problem() is None
        await small.compact(await small.revision())
    with pytest.raises(NoRoom, match="a copy of 52428800 more bytes"):
        await check_room(small, size=50 << 20)
    await check_room(small, size=1 << 20)


async def test_raise_revision_refuses_before_its_writes_fill_etcd(small: Client) -> None:
    await _fill(small, _TARGET, count=42)
    before = await small.revision()
    with pytest.raises(NoRoom, match="a copy of 18000000 more bytes"):
        await raise_revision(small, above=before + MOST_RAISED - 1)
    assert await small.revision() == before
    assert await raise_revision(small, above=before + 100) > before + 100


async def test_disarm_allows_writes_after_data_are_deleted(small: Client, tmp_path: Path) -> None:
    def member(url: str) -> Client:
        assert url == small.endpoint
        return Client(url, credentials=Credentials.in_directory(tmp_path / "root"))

    async def fill() -> None:
        with pytest.raises(NoRoom, match="database space exceeded"):
            await _fill(small, _TARGET, count=200)
        assert "NOSPACE" in (await small.problem() or "")

    await fill()
    # Defragmentation removes free pages from the file. An etcd that its data fill stays full.
    for _ in range(5):
        if not await disarm(small, member=member):
            break
        await fill()
    assert "NOSPACE" in (await small.problem() or "")

    await small.delete_prefix(_TARGET)
    assert await disarm(small, member=member)
    assert await small.problem() is None
    await _fill(small, _TARGET, count=8)
    assert not await disarm(small, member=member)
    assert (await room_in(small)).quota == _QUOTA


async def test_disarm_frees_each_of_three_members(
    binaries: Binaries, tmp_path: Path, hold_port: Callable[[], int]
) -> None:
    authority = create_authority("test-etcd")
    peers = [f"http://127.0.0.1:{hold_port()}" for _ in range(3)]
    cluster = ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))
    members: list[Etcd] = []
    for number, peer in enumerate(peers):
        directory = tmp_path / f"m{number}"
        directory.mkdir()
        flags = (
            f"--quota-backend-bytes={_QUOTA}",
            f"--name=m{number}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={cluster}",
        )
        members.append(Etcd(binaries.path("etcd"), directory, hold_port(), authority=authority, flags=flags, peer=peer))
    credentials = members[0].credentials("root", tmp_path / "root")
    urls: list[str] = []

    def member(url: str) -> Client:
        urls.append(url)
        return Client(url, credentials=credentials)

    try:
        for etcd in members:
            etcd.start()
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(Client(etcd.url, credentials=credentials)) for etcd in members]
            for client in clients:
                await answering(client)
            with pytest.raises(NoRoom, match="database space exceeded"):
                await _fill(clients[0], _TARGET, count=200)
            with pytest.raises(NoRoom):
                await clients[1].put(_NEIGHBOUR, b"refused")
            await clients[2].delete_prefix(_TARGET)
            leader = await clients[0].members.leader()
            (leader_url,) = [etcd.client_url for etcd in await clients[0].members.list() if etcd.id == leader]
            for _ in range(5):
                # A call without success is repeated until the pages of each member are free.
                if await disarm(clients[0], member=member):
                    break
            assert sorted(urls[-3:]) == sorted(etcd.url for etcd in members)
            assert urls[-1] == leader_url
            for client in clients:
                assert await client.problem() is None
                status = await client.connection.call(rpc.STATUS, pb.StatusRequest(), timeout_seconds=10.0)
                assert status.dbSize < _QUOTA // 4
                await _fill(client, _TARGET, count=4)
                assert await client.problem() is None
    finally:
        for etcd in members:
            etcd.stop()


@pytest.mark.parametrize(
    ("room", "size", "fits"),
    [
        (Room(used=50, quota=100), 30, True),
        (Room(used=50, quota=100), 31, False),
        (Room(used=91, quota=100), 0, False),
        (Room(used=91, quota=0), 1000, True),
    ],
)
def test_room_has_space_up_to_nine_tenths_of_quota(room: Room, size: int, fits: bool) -> None:
    assert room.has(size) is fits
