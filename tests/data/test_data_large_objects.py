"""Objects at the size limit of etcd requests. A copy has to write each object that an API server could write."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from kplane.data import (
    Archive,
    Client,
    DataError,
    Follower,
    Owner,
    Pair,
    Place,
    Put,
    TooLarge,
    archive,
    claim,
    digest,
    owned_by,
    write_copy,
)
from kplane.data._proto import etcd_pb2 as pb
from kplane.data.rpc import TXN

from .conftest import Etcd

pytestmark = pytest.mark.integration

_OWNER = Owner("5b1c4b8e-7a0e-4b8e-9d55-0a6d2f1c7e11", "copy")
_SOURCE, _TARGET = "/clusters/aa/", "/clusters/bb/"
_KEY = "configmaps/default/large"
_LIMIT = 1_572_864
"""Bytes of a request that etcd takes without a flag."""


@pytest.fixture
async def client(other: Etcd, tmp_path: Path) -> AsyncIterator[Client]:
    async with Client(other.url, credentials=other.credentials("root", tmp_path / "writer")) as client:
        yield client


async def _create(client: Client, *, size: int) -> None:
    """Create an object as an API server does."""
    key = (_SOURCE + _KEY).encode()
    request = pb.TxnRequest(
        compare=[pb.Compare(target=pb.Compare.MOD, key=key, mod_revision=0)],
        success=[pb.RequestOp(request_put=pb.PutRequest(key=key, value=bytes(size)))],
    )
    await client.connection.call(TXN, request, timeout_seconds=10)


async def _create_largest(client: Client) -> None:
    """Create the largest object that etcd takes from an API server, found by its refusals."""
    for size in range(_LIMIT, 0, -1):
        try:
            await _create(client, size=size)
        except TooLarge:
            continue
        assert size > _LIMIT - 150
        return


async def test_copy_writes_the_largest_object_of_an_api_server(client: Client) -> None:
    await _create_largest(client)
    await client.apply([Put(f"{_SOURCE}{name}".encode(), b"small") for name in ("a", "z")])
    await claim(client, _TARGET, owner=_OWNER)
    saved = archive(client, _SOURCE, header={})

    async def pairs() -> AsyncIterator[Iterable[Pair]]:
        async for page in client.pages(_SOURCE):
            yield [(item.key.removeprefix(_SOURCE.encode()), item.value) for item in page.items]

    assert await write_copy(client, pairs(), _TARGET, owner=_OWNER)
    assert await digest(client, _TARGET) == await digest(client, _SOURCE) == await _digest_of(saved)


async def _digest_of(saved: Archive) -> object:
    async for _ in saved.chunks():
        pass
    assert saved.archived is not None
    return saved.archived.digest


async def test_copy_of_large_objects_is_completed_after_failure(client: Client) -> None:
    await _create_largest(client)
    await claim(client, _TARGET, owner=_OWNER)
    item = await client.get((_SOURCE + _KEY).encode())
    assert item is not None
    value = item.value

    async def pairs(*, fails: bool = False) -> AsyncIterator[Iterable[Pair]]:
        yield [(_KEY.encode(), value), (b"configmaps/default/later", value)]
        if fails:
            raise DataError("cut off")

    with pytest.raises(DataError, match="cut off"):
        await write_copy(client, pairs(fails=True), _TARGET, owner=_OWNER)
    assert await write_copy(client, pairs(), _TARGET, owner=_OWNER)
    # Two objects, and the mark of the copy.
    assert await client.count(_TARGET) == 3
    # Another call finds the copy finished.
    assert await write_copy(client, pairs(), _TARGET, owner=_OWNER)


async def test_follower_writes_the_largest_object_of_an_api_server(client: Client) -> None:
    await _create_largest(client)
    await claim(client, _TARGET, owner=_OWNER)
    follower = Follower(Place(client, _SOURCE), Place(client, _TARGET, only_if=(owned_by(_TARGET, _OWNER),)))
    await follower.copy()
    assert (await follower.verify()).equal


async def test_error_names_object_that_is_too_large_for_etcd(client: Client) -> None:
    with pytest.raises(TooLarge, match=r"failed to write /clusters/bb/big .* 1572864 bytes, .*max-request-bytes"):
        await client.apply([Put(b"/clusters/bb/big", bytes(_LIMIT))])


async def test_accepts_finds_the_request_limit_without_a_change(client: Client) -> None:
    key, revision = f"{_TARGET}absent".encode(), await client.revision()
    assert await client.accepts(key, size=_LIMIT - 200)
    assert not await client.accepts(key, size=_LIMIT)
    assert (await client.get(key), await client.problem()) == (None, None)
    assert await client.revision() == revision
