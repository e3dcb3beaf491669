"""Archives of a prefix: their content, and the detection of damaged archives."""

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
    """Fake client that returns these pages."""

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
async def test_archive_reader_returns_archived_pairs(piece: int) -> None:
    saved_archive = archive(Pages(keys(VALUES), keys({"z": b""})), "/a/", header=HEADER)
    content = b"".join([chunk async for chunk in saved_archive.chunks()])
    reader, pairs = ArchiveReader(), []
    for at in range(0, len(content), piece):
        pairs += reader.feed(content[at : at + piece])
    assert {key.decode(): value for key, value in pairs} == {**VALUES, "z": b""}
    assert reader.end() == saved_archive.archived
    assert reader.end().revision == 7
    assert reader.end().header["name"] == "acme"


async def test_archive_refuses_value_too_large_for_restore() -> None:
    with pytest.raises(DataError, match="failed to archive configmaps/big: it has 2097152 bytes, and a restore writes"):
        await packed(Pages(keys({"configmaps/big": bytes(2 << 20)})))


async def test_archive_of_empty_prefix_is_complete() -> None:
    reader = ArchiveReader()
    assert reader.feed(await packed(Pages([]))) == []
    assert reader.end().digest.count == 0


async def test_archive_omits_leased_keys_and_own_records_of_api_server() -> None:
    own_records = {
        "masterleases/10.0.0.1": b"1",
        "leases/kube-system/apiserver-x": b"2",
        "services/endpoints/default/kubernetes": b"3",
        "endpointslices/default/kubernetes": b"4",
    }
    kept_values = {
        "leases/kube-system/kube-controller-manager": b"5",
        "services/endpoints/default/kubernetes-too": b"6",
    }
    content = await packed(Pages(keys(own_records), keys({"events/shop/x": b"7"}, lease=3), keys(kept_values)))
    assert {key.decode(): value for key, value in ArchiveReader().feed(content)} == kept_values


async def test_archive_truncated_at_any_byte_is_refused() -> None:
    content = await packed(Pages(keys({"a": b"1", "b": b"2"})))
    for length in range(len(content)):
        reader = ArchiveReader()
        reader.feed(content[:length])
        with pytest.raises(ArchiveDamaged):
            reader.end()


async def test_archive_with_changed_byte_after_header_is_refused() -> None:
    content = await packed(Pages(keys({"a": b"1", "b": b"2"})))
    begin = content.index(b"}") + 1
    for at in range(begin, len(content)):
        with pytest.raises(ArchiveDamaged):
            read(content[:at] + bytes([content[at] ^ 0x15]) + content[at + 1 :])
    with pytest.raises(ArchiveDamaged):
        read(content + b"x")


def test_archive_reader_refuses_other_file_at_once() -> None:
    with pytest.raises(ArchiveDamaged, match="no archive"):
        ArchiveReader().feed(b"SQLite format 3")


async def test_archive_and_reader_bound_memory() -> None:
    """The archive has 64 MiB, in pages of 1 MiB."""

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
async def test_archive_of_real_etcd_is_restored_to_another_prefix(
    client: Client, prefix: str, new_prefix: Callable[[], str]
) -> None:
    for key, value in VALUES.items():
        await client.put(f"{prefix}{key}".encode(), value)
    for key in ("masterleases/1", ".copy", ".follow"):
        await client.put(f"{prefix}{key}".encode(), b"own")
    other_prefix, reader, owner = new_prefix(), ArchiveReader(), Owner("uid-1")
    content = await packed(client, prefix)

    async def pairs() -> AsyncIterator[list[Pair]]:
        yield reader.feed(content[:1000])
        yield reader.feed(content[1000:])

    async def check() -> None:
        assert await digest(client, other_prefix) == reader.end().digest
        assert not await is_copy(client, other_prefix, owner=owner)

    await claim(client, other_prefix, owner=owner)
    assert await write_copy(client, pairs(), other_prefix, owner=owner, check=check)
    assert await is_copy(client, other_prefix, owner=owner)
    assert await digest(client, other_prefix) == reader.end().digest


@pytest.mark.integration
async def test_copy_of_incomplete_source_stays_unfinished(client: Client, prefix: str) -> None:
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
async def test_pages_shrink_for_large_values_and_grow_again(etcd: Etcd, prefix: str, client: Client) -> None:
    for number in range(8):
        await client.put(f"{prefix}{number}".encode(), bytes(300_000))
    await client.apply([Put(f"{prefix}small-{number:03}".encode(), b"") for number in range(120)])
    credentials = Credentials.in_directory(etcd.directory / "root")
    async with Client(etcd.url, credentials=credentials, receive_at_most=1 << 20) as narrow_client:
        pages = [len(page.items) async for page in narrow_client.pages(prefix)]
    assert sum(pages) == 128
    assert max(pages[:2]) <= 3
    # After the large values, the pages grow again.
    assert len(pages) < 12
