"""Copies of a template: fresh uids, and an end in one piece whatever happens between two writes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplane.data import (
    Client,
    Credentials,
    DataError,
    NotOwned,
    Original,
    Owner,
    Template,
    ValueUnreadable,
    claim,
    clone,
    delete_owned,
    discard_unfinished,
    is_clone,
    lacks_data,
    uid_of,
)
from kplane.data.rpc import TXN

from .conftest import Etcd
from .test_data_uids import UID, field, protobuf

OWNER = Owner("b1f0c2d4-6a88-4a1b-8c55-0f3e2d1c0b9a", "acme")
NAMESAKE = Owner("c2f0c2d4-6a88-4a1b-8c55-0f3e2d1c0b9a", "acme")
PLACEHOLDER = "00000000-0000-4000-8000-000000000000"
NO_UID = str(uuid.uuid4())


def stored(uid: str, *, rest: bytes = b"") -> bytes:
    return protobuf(field(5, uid.encode()), field(9, rest))


def template(**values: bytes) -> Template:
    return Template(1, {name.replace("_", "/").encode(): value for name, value in values.items()})


def many(count: int) -> Template:
    """Each object names the one before as its owner."""
    uids = [str(uuid.uuid4()) for _ in range(count)]
    return Template(1, {b"pods/%d" % n: stored(uid, rest=uids[n - 1].encode()) for n, uid in enumerate(uids)})


@given(
    uids=st.lists(st.uuids(version=4).map(str), min_size=1, max_size=6, unique=True),
    noise=st.lists(st.binary(max_size=40), min_size=6, max_size=6),
)
def test_each_uid_is_replaced_everywhere_and_nothing_else(uids: list[str], noise: list[bytes]) -> None:
    joined = b"".join(piece + uid.encode() for piece, uid in zip(noise, uids, strict=False))
    values = {b"things/%d" % n: stored(uid, rest=joined + NO_UID.encode()) for n, uid in enumerate(uids)}
    copy = dict(Original.of(Template(1, values)).copied())
    assert copy.keys() == values.keys()
    fresh = {uid: uid_of(copy[b"things/%d" % n]) or "" for n, uid in enumerate(uids)}
    assert len({*fresh.values(), *uids}) == 2 * len(uids)
    for key, value in values.items():
        for uid, other in fresh.items():
            value = value.replace(uid.encode(), other.encode())
        assert copy[key] == value
        assert NO_UID.encode() in copy[key]


def test_the_placeholder_becomes_what_the_copy_is_told() -> None:
    bound = template(clusterrolebindings_a=stored(UID, rest=b"user:" + PLACEHOLDER.encode()))
    original = Original.of(bound, placeholder=PLACEHOLDER)
    (copy,) = [value for _, value in original.copied(replaced=OWNER.uid)]
    assert f"user:{OWNER.uid}".encode() in copy
    with pytest.raises(ValueError, match="length of a uid"):
        dict(original.copied(replaced="short"))


def test_what_an_api_server_says_of_its_own_certificates_is_not_copied() -> None:
    written = Template(
        1,
        {
            b"configmaps/kube-system/extension-apiserver-authentication": stored(UID, rest=b"-----BEGIN CERTIFICATE"),
            b"configmaps/kube-system/other": stored(str(uuid.uuid4())),
        },
    )
    assert [key for key, _ in Original.of(written).copied()] == [b"configmaps/kube-system/other"]


def test_a_copy_may_leave_keys_out() -> None:
    original = Original.of(
        template(namespaces_a=stored(UID), namespaces_b=stored(str(uuid.uuid4()), rest=UID.encode()))
    )
    copy = dict(original.copied(without={b"namespaces/a"}))
    assert copy.keys() == {b"namespaces/b"}
    assert UID.encode() not in copy[b"namespaces/b"]


def test_a_template_with_a_value_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ValueUnreadable):
        Original.of(template(secrets_a=b"k8s:enc:secretbox:v1:kplane:\x00"))


class Cut(Client):
    """Stops at the transaction of a number: before it is sent, or after it took effect, as the test asks."""

    def __init__(self, etcd: Etcd, *, at: int, sent: bool) -> None:
        super().__init__(etcd.url, credentials=Credentials.in_directory(etcd.directory / "root"))
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        self._left, self._sent = at, sent

    async def _call(self, method: Any, request: Any) -> Any:
        if method is TXN:
            self._left -= 1
            if self._left == 0:
                answer = await super()._call(method, request) if self._sent else None
                self.reached.set()
                await self.go.wait()
                return answer if self._sent else await super()._call(method, request)
        return await super()._call(method, request)


@pytest.fixture
async def cut(etcd: Etcd) -> AsyncIterator[Callable[..., Cut]]:
    made: list[Cut] = []

    def make(*, at: int, sent: bool) -> Cut:
        made.append(Cut(etcd, at=at, sent=sent))
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def _values(client: Client, prefix: str) -> dict[bytes, bytes]:
    return {
        item.key.removeprefix(prefix.encode()): item.value async for page in client.pages(prefix) for item in page.items
    }


async def _is_whole(client: Client, prefix: str, source: Template) -> None:
    """Check that there is one copy in the prefix, and not parts of two."""
    found = await Template.read(client, prefix)
    assert found.values.keys() == source.values.keys()
    names = {uid_of(source.values[key]): uid_of(value) for key, value in found.values.items()}
    for key, value in found.values.items():
        expected = source.values[key]
        for uid, fresh in names.items():
            expected = expected.replace((uid or "").encode(), (fresh or "").encode())
        assert value == expected


@pytest.mark.integration
@pytest.mark.parametrize("count", [0, 1, 118, 119, 300])
async def test_a_copy_is_made_once(client: Client, prefix: str, count: int) -> None:
    source = many(count)
    await claim(client, prefix, owner=OWNER)
    assert not await is_clone(client, prefix, owner=OWNER)
    assert await lacks_data(client, prefix, owner=OWNER)
    assert await clone(client, Original.of(source), prefix, owner=OWNER)
    assert not await lacks_data(client, prefix, owner=OWNER)
    await _is_whole(client, prefix, source)
    made = await _values(client, prefix)
    assert await clone(client, Original.of(source), prefix, owner=OWNER)
    assert await is_clone(client, prefix, owner=OWNER)
    assert await _values(client, prefix) == made
    assert await delete_owned(client, prefix, owner=OWNER) == count + 1


@pytest.mark.integration
async def test_other_keys_are_never_touched(client: Client, prefix: str, new_prefix: Callable[[], str]) -> None:
    original = Original.of(many(3))
    await client.put(f"{prefix}namespaces/default".encode(), b"live")
    beside = f"{prefix[:-1]}0".encode()
    await client.put(beside, b"beside")
    await claim(client, prefix, owner=OWNER, known=True)
    assert not await lacks_data(client, prefix, owner=OWNER)
    assert not await clone(client, original, prefix, owner=OWNER)
    assert await _values(client, prefix) == {b"namespaces/default": b"live"}
    assert (await client.get(beside)) is not None

    free = new_prefix()
    for owner in (None, NAMESAKE):
        if owner is not None:
            await claim(client, free, owner=owner)
        with pytest.raises(NotOwned):
            await clone(client, original, free, owner=OWNER)
        assert await client.count(free) == 0


@pytest.mark.integration
async def test_the_copy_of_an_earlier_owner_is_data_like_any_other(client: Client, prefix: str) -> None:
    original = Original.of(many(3))
    await claim(client, prefix, owner=NAMESAKE)
    await clone(client, original, prefix, owner=NAMESAKE)
    await client.put(b"/kplane.dev/owners" + prefix.encode(), OWNER.encode())
    before = await _values(client, prefix)
    assert not await clone(client, original, prefix, owner=OWNER)
    assert not await is_clone(client, prefix, owner=OWNER)
    assert await _values(client, prefix) == before


@pytest.mark.integration
async def test_a_copy_that_was_cut_off_is_discarded_by_its_owner_only(
    client: Client, cut: Callable[..., Cut], prefix: str
) -> None:
    original = Original.of(many(300))
    await claim(client, prefix, owner=OWNER)
    killed = cut(at=2, sent=True)
    async with asyncio.TaskGroup() as group:
        former = group.create_task(_quietly(clone(killed, original, prefix, owner=OWNER)))
        await killed.reached.wait()
        before = await _values(client, prefix)
        await discard_unfinished(client, prefix, owner=NAMESAKE)
        assert await _values(client, prefix) == before
        await discard_unfinished(client, prefix, owner=OWNER)
        assert await client.count(prefix) == 0
        killed.go.set()
        await former
        # A late call of that attempt finds its mark gone.
        assert await client.count(prefix) == 0
    await clone(client, original, prefix, owner=OWNER)
    made = await _values(client, prefix)
    await discard_unfinished(client, prefix, owner=OWNER)
    assert await _values(client, prefix) == made


@pytest.mark.integration
@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_copy_that_was_cut_off_is_begun_again_and_its_late_calls_change_nothing(
    client: Client, cut: Callable[..., Cut], prefix: str, at: int, sent: bool
) -> None:
    source = many(300)
    original = Original.of(source)
    await claim(client, prefix, owner=OWNER)
    killed = cut(at=at, sent=sent)
    async with asyncio.TaskGroup() as group:
        former = group.create_task(_quietly(clone(killed, original, prefix, owner=OWNER)))
        await killed.reached.wait()
        finished = at == 3 and sent
        assert await is_clone(client, prefix, owner=OWNER) is finished
        assert await lacks_data(client, prefix, owner=OWNER) is not finished
        nothing_written = at == 1 and not sent
        assert await lacks_data(client, prefix, owner=NAMESAKE) is nothing_written
        assert await clone(client, original, prefix, owner=OWNER)
        made = await _values(client, prefix)
        killed.go.set()
    # One that had nothing left to do, or sees what the other did, may say so too.
    assert former.result() in {None, True}
    await _is_whole(client, prefix, source)
    assert await _values(client, prefix) == made


@pytest.mark.integration
async def test_an_owner_who_lost_the_prefix_writes_nothing_more(
    client: Client, cut: Callable[..., Cut], prefix: str
) -> None:
    original = Original.of(many(300))
    await claim(client, prefix, owner=OWNER)
    slow = cut(at=2, sent=False)
    copying = asyncio.create_task(clone(slow, original, prefix, owner=OWNER))
    await slow.reached.wait()
    await client.put(b"/kplane.dev/owners" + prefix.encode(), NAMESAKE.encode())
    before = await _values(client, prefix)
    slow.go.set()
    with pytest.raises(NotOwned):
        await copying
    assert await _values(client, prefix) == before
    # To the next owner these are data.
    assert not await clone(client, original, prefix, owner=NAMESAKE)
    assert await _values(client, prefix) == before


async def _quietly(call: Any) -> Any:
    try:
        return await call
    except DataError:
        return None
