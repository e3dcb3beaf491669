"""The resourceVersion of an object only grows for clients, however its data move between two real etcds."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from kplane.data import Client, Credentials, Delete, Follower, Place, Put, raise_revision

from .conftest import Etcd

pytestmark = pytest.mark.integration

_KEYS = 12
_BETWEEN = 40
"""Revisions between two homes; migrations of the operator use 5,000."""


@pytest.fixture
async def homes(other: Etcd, client: Client, new_prefix: Callable[[], str]) -> AsyncIterator[tuple[Place, Place]]:
    async with Client(other.url, credentials=Credentials.in_directory(other.directory / "root")) as other_client:
        yield Place(client, new_prefix()), Place(other_client, new_prefix())


@dataclass
class Clients:
    """Versions and contents that clients of a control plane have read."""

    highest: dict[bytes, int] = field(default_factory=dict)
    """Highest version by key."""
    contents: dict[tuple[bytes, int], tuple[int, bytes]] = field(default_factory=dict)
    """Number of changes of a key and its value, by key and version."""
    changes: dict[bytes, int] = field(default_factory=dict)
    """Number of changes by clients, by key."""

    async def look(self, place: Place) -> None:
        head = place.prefix.encode()
        async for page in place.client.pages(place.prefix):
            for item in page.items:
                key = item.key.removeprefix(head)
                if key.startswith(b".follow"):
                    continue
                assert item.revision >= self.highest.get(key, 0)
                self.highest[key] = item.revision
                # A version stands for a single content, so an update with this version overwrites no newer content.
                content = self.changes[key], item.value
                assert self.contents.setdefault((key, item.revision), content) == content


async def move(source: Place, target: Place, *, attempts: int) -> None:
    """Move data as a migration does. Further attempts repeat the copy, as after the death of an operator."""
    await raise_revision(target.client, above=await source.client.revision() + _BETWEEN)
    for _ in range(attempts):
        follower = Follower(source, target)
        await follower.copy()
    assert (await follower.verify()).equal


@pytest.mark.parametrize("seed", range(5))
async def test_versions_grow_through_moves_rollbacks_and_changes(homes: tuple[Place, Place], seed: int) -> None:
    chance, clients = random.Random(seed), Clients()
    present, former = homes
    for _ in range(16):
        for _ in range(chance.randint(0, 8)):
            key = f"things/{chance.randrange(_KEYS):05}".encode()
            # With only two values, a key often returns to an earlier value.
            value, name = chance.choice([b"a", b"b"]), present.prefix.encode() + key
            await present.apply([Delete(name) if chance.random() < 0.2 else Put(name, value)])
            clients.changes[key] = clients.changes.get(key, 0) + 1
            await clients.look(present)
        if chance.random() < 0.6:
            await move(present, former, attempts=chance.randint(1, 2))
            present, former = former, present
            await clients.look(present)


async def test_copy_into_former_home_rewrites_each_key_once(homes: tuple[Place, Place]) -> None:
    first, second = homes
    await first.apply([Put(f"{first.prefix}things/{number}".encode(), b"same") for number in range(50)])
    await move(first, second, attempts=1)
    await raise_revision(first.client, above=await second.client.revision() + _BETWEEN)
    follower = Follower(second, first)
    await follower.copy()
    assert follower.keys == 50
    second_follower = Follower(second, first)
    await second_follower.copy()
    assert second_follower.keys == 0
