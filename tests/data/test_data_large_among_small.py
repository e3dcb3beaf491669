"""Ten objects of 1.45 MB among many small objects: a copy, a snapshot and a deletion read full pages again after them.

A page with such objects exceeds the largest answer, so the client halves its limit. With a limit that stayed small, and
with the end of the prefix for each page, etcd would count the rest of the keys in thousands of calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from kplane.data import (
    Client,
    Follower,
    Operation,
    Owner,
    Pair,
    Place,
    Put,
    archive,
    claim,
    delete_owned,
    digest,
    owned_by,
    owner_key,
    write_copy,
)
from kplane.data.client import MAX_OPERATIONS
from kplane.data.follow import LARGEST_ANSWER
from kplane.data.rpc import RANGE

from .conftest import Etcd

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

_OWNER = Owner("5b1c4b8e-7a0e-4b8e-9d55-0a6d2f1c7e11", "copy")
_SOURCE, _MOVED, _RESTORED = "/clusters/aa/", "/clusters/bb/", "/clusters/cc/"
_SMALL = 30_000
_SMALL_BYTES = 500
_LARGE = 10
_LARGE_BYTES = 1_450_000
_PAGES = _SMALL // 200 + 100
"""Maximum number of reads of all keys. An archive reads at most 200 keys in a page. With a limit that never grows
again, an archive would take about 6,000."""


class Counting(Client):
    """A client with the largest answer of a migration, which counts its reads of ranges, and the keys that etcd counts
    for each of them.
    """

    reads = 0
    counted = 0

    @override
    async def _call(self, method: Any, request: Any) -> Any:
        answer = await super()._call(method, request)
        if method is RANGE and request.limit:
            self.reads += 1
            self.counted += answer.count
        return answer

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Assert that the body reads few pages, for which etcd counts each key a few times only."""
        self.reads = self.counted = 0
        yield
        assert 0 < self.reads < _PAGES
        assert self.counted < 30 * _SMALL


@pytest.fixture
async def client(other: Etcd, tmp_path: Path) -> AsyncIterator[Counting]:
    """A client of an etcd in which ten large objects follow a fifth of the small ones."""
    credentials = other.credentials("root", tmp_path / "writer")
    async with Counting(other.url, credentials=credentials, receive_at_most=LARGEST_ANSWER) as client:
        small = [_key(number) for number in range(_SMALL)]
        for start in range(0, _SMALL, MAX_OPERATIONS):
            puts: list[Operation] = [Put(key, bytes(_SMALL_BYTES)) for key in small[start : start + MAX_OPERATIONS]]
            await client.apply(puts)
        for number in range(_LARGE):
            await client.put(_key(_SMALL // 5) + b"-large-%d" % number, bytes(_LARGE_BYTES))
        yield client


def _key(number: int) -> bytes:
    return f"{_SOURCE}configmaps/default/entry-{number:06}".encode()


async def _pairs(client: Client) -> AsyncIterator[Iterable[Pair]]:
    async for page in client.pages(_SOURCE):
        yield [(item.key.removeprefix(_SOURCE.encode()), item.value) for item in page.items]


async def test_move_snapshot_restore_and_deletion_read_full_pages(client: Counting) -> None:
    source = await digest(client, _SOURCE)
    assert source.count == _SMALL + _LARGE

    async with client.reading():
        snapshot = archive(client, _SOURCE, header={})
        async for _ in snapshot.chunks():
            pass
    assert snapshot.archived is not None
    assert snapshot.archived.digest == source

    await claim(client, _MOVED, owner=_OWNER)
    follower = Follower(Place(client, _SOURCE), Place(client, _MOVED, only_if=(owned_by(_MOVED, _OWNER),)))
    async with client.reading():
        await follower.copy()
    assert (await follower.verify()).equal

    await claim(client, _RESTORED, owner=_OWNER)
    async with client.reading():
        assert await write_copy(client, _pairs(client), _RESTORED, owner=_OWNER)
    assert await digest(client, _RESTORED) == source

    async with client.reading():
        # The copy has its mark beside the data.
        assert await delete_owned(client, _RESTORED, owner=_OWNER) == source.count + 1
    assert await client.get(owner_key(_RESTORED)) is None
