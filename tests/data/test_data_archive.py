"""Archives of a prefix: what they hold, and that a damaged one is told from a whole one."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator, Callable

import pytest

from kplane.data import (
    ArchiveDamaged,
    ArchiveReader,
    Client,
    Credentials,
    DataError,
    KeyValue,
    Owner,
    Page,
    Pair,
    Put,
    archive,
    claim,
    digest,
    is_copy,
    lacks_data,
    write_copy,
)

from .conftest import Etcd

HEADER = {"name": "acme"}
VALUES = {f"configmaps/shop/{number:04}": bytes([number % 256]) * (number % 70) for number in range(450)}


class Pages(Client):
    """A client that has these pages."""

    def __init__(self, *pages: list[KeyValue]) -> None:
        self._pages = pages

    async def pages(self, prefix: str, *, size: int = 500, revision: int = 0) -> AsyncIterator[Page]:
        for items in self._pages:
            yield Page(7, tuple(items))


def keys(values: dict[str, bytes], *, lease: int = 0) -> list[KeyValue]:
    return [KeyValue(f"/a/{key}".encode(), value, 1, lease) for key, value in values.items()]


async def packed(client: Client, prefix: str = "/a/") -> bytes:
    return b"".join([chunk async for chunk in archive(client, prefix, header=HEADER).chunks()])


def read(content: bytes) -> None:
    reader = ArchiveReader()
    reader.feed(content)
    reader.end()


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
async def test_an_archive_gives_back_what_was_put_in(piece: int) -> None:
    made = archive(Pages(keys(VALUES), keys({"z": b""})), "/a/", header=HEADER)
    content = b"".join([chunk async for chunk in made.chunks()])
    reader, found = ArchiveReader(), []
    for at in range(0, len(content), piece):
        found += reader.feed(content[at : at + piece])
    assert {key.decode(): value for key, value in found} == {**VALUES, "z": b""}
    assert reader.end() == made.archived
    assert reader.end().revision == 7
    assert reader.end().header["name"] == "acme"


async def test_archive_refuses_a_value_that_no_restore_could_write() -> None:
    with pytest.raises(DataError, match="failed to archive configmaps/big: it has 2097152 bytes, and a restore writes"):
        await packed(Pages(keys({"configmaps/big": bytes(2 << 20)})))


async def test_an_archive_of_nothing_is_whole() -> None:
    reader = ArchiveReader()
    assert reader.feed(await packed(Pages([]))) == []
    assert reader.end().digest.count == 0


async def test_what_ends_by_itself_or_says_where_the_api_server_is_is_left_out() -> None:
    own = {
        "masterleases/10.0.0.1": b"1",
        "leases/kube-system/apiserver-x": b"2",
        "services/endpoints/default/kubernetes": b"3",
        "endpointslices/default/kubernetes": b"4",
    }
    kept = {"leases/kube-system/kube-controller-manager": b"5", "services/endpoints/default/kubernetes-too": b"6"}
    content = await packed(Pages(keys(own), keys({"events/shop/x": b"7"}, lease=3), keys(kept)))
    assert {key.decode(): value for key, value in ArchiveReader().feed(content)} == kept


async def test_a_cut_archive_is_refused_wherever_it_is_cut() -> None:
    content = await packed(Pages(keys({"a": b"1", "b": b"2"})))
    for length in range(len(content)):
        reader = ArchiveReader()
        reader.feed(content[:length])
        with pytest.raises(ArchiveDamaged):
            reader.end()


async def test_a_garbled_archive_is_refused_wherever_it_is_garbled() -> None:
    content = await packed(Pages(keys({"a": b"1", "b": b"2"})))
    begin = content.index(b"}") + 1
    for at in range(begin, len(content)):
        with pytest.raises(ArchiveDamaged):
            read(content[:at] + bytes([content[at] ^ 0x15]) + content[at + 1 :])
    with pytest.raises(ArchiveDamaged):
        read(content + b"x")


def test_another_file_is_refused_at_once() -> None:
    with pytest.raises(ArchiveDamaged, match="no archive"):
        ArchiveReader().feed(b"SQLite format 3")


async def test_neither_side_holds_more_than_a_page() -> None:
    """64 MiB go through, in pages of 1 MiB."""

    class Endless(Client):
        def __init__(self) -> None:
            pass

        async def pages(self, prefix: str, *, size: int = 500, revision: int = 0) -> AsyncIterator[Page]:
            for page in range(64):
                yield Page(7, tuple(KeyValue(f"/a/{page}-{n}".encode(), bytes(1 << 16), 1) for n in range(16)))

    reader = ArchiveReader()
    tracemalloc.start()
    try:
        async for chunk in archive(Endless(), "/a/", header=HEADER).chunks():
            reader.feed(chunk)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reader.end().size > 64 << 20
    assert peak < 16 << 20


@pytest.mark.integration
async def test_an_archive_of_a_real_etcd_is_written_to_another_prefix(
    client: Client, prefix: str, new_prefix: Callable[[], str]
) -> None:
    for key, value in VALUES.items():
        await client.put(f"{prefix}{key}".encode(), value)
    for key in ("masterleases/1", ".copy", ".follow"):
        await client.put(f"{prefix}{key}".encode(), b"own")
    other, reader, owner = new_prefix(), ArchiveReader(), Owner("uid-1")
    packages = await packed(client, prefix)

    async def pairs() -> AsyncIterator[list[Pair]]:
        yield reader.feed(packages[:1000])
        yield reader.feed(packages[1000:])

    async def check() -> None:
        assert await digest(client, other) == reader.end().digest
        assert not await is_copy(client, other, owner=owner)

    await claim(client, other, owner=owner)
    assert await write_copy(client, pairs(), other, owner=owner, check=check)
    assert await is_copy(client, other, owner=owner)
    assert await digest(client, other) == reader.end().digest


@pytest.mark.integration
async def test_a_copy_of_what_is_not_whole_stays_unfinished(client: Client, prefix: str) -> None:
    owner = Owner("uid-1")
    await claim(client, prefix, owner=owner)

    async def damaged() -> AsyncIterator[list[Pair]]:
        yield [(key.encode(), value) for key, value in VALUES.items()]
        raise ArchiveDamaged("cut")

    async def refused() -> None:
        raise ArchiveDamaged("other data")

    async def whole() -> AsyncIterator[list[Pair]]:
        yield [(b"configmaps/a", b"1")]

    with pytest.raises(ArchiveDamaged, match="cut"):
        await write_copy(client, damaged(), prefix, owner=owner)
    assert await client.count(prefix) > 100
    with pytest.raises(ArchiveDamaged, match="other data"):
        await write_copy(client, whole(), prefix, owner=owner, check=refused)
    assert await lacks_data(client, prefix, owner=owner)
    assert await write_copy(client, whole(), prefix, owner=owner)
    assert await client.count(prefix) == 2


@pytest.mark.integration
async def test_values_that_are_large_together_are_read_in_smaller_pages(
    etcd: Etcd, prefix: str, client: Client
) -> None:
    for number in range(8):
        await client.put(f"{prefix}{number}".encode(), bytes(300_000))
    await client.apply([Put(f"{prefix}small-{number:03}".encode(), b"") for number in range(120)])
    credentials = Credentials.in_directory(etcd.directory / "root")
    async with Client(etcd.url, credentials=credentials, receive_at_most=1 << 20) as narrow:
        pages = [len(page.items) async for page in narrow.pages(prefix)]
    assert sum(pages) == 128
    assert max(pages[:2]) <= 3
    # Behind the large values, the pages grow again.
    assert len(pages) < 12
