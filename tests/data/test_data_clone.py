"""Copies of a template have fresh uids, and are completed after an interruption between two writes."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplane.data import (
    Client,
    Cloning,
    Credentials,
    DataError,
    NotOwned,
    Original,
    Owner,
    Template,
    ValueEncrypted,
    ValueUnreadable,
    claim,
    clone,
    delete_owned,
    discard_unfinished,
    is_copy,
    lacks_data,
    uid_of,
    usage,
)
from kplane.data.rpc import TXN
from kplane.data.template import COPY_MARK
from kplane.data.uids import creation_time_of

from .conftest import Etcd
from .test_data_uids import UID, field, protobuf, timestamp

OWNER = Owner("b1f0c2d4-6a88-4a1b-8c55-0f3e2d1c0b9a", "acme")
NAMESAKE = Owner("c2f0c2d4-6a88-4a1b-8c55-0f3e2d1c0b9a", "acme")
PLACEHOLDER = "00000000-0000-4000-8000-000000000000"
NO_UID = str(uuid.uuid4())


def stored(uid: str, *, rest: bytes = b"") -> bytes:
    return protobuf(field(5, uid.encode()), field(9, rest))


def template(**values: bytes) -> Template:
    return Template(1, {name.replace("_", "/").encode(): value for name, value in values.items()})


def many(count: int) -> Template:
    """Return a template whose objects name the previous object as their owner."""
    uids = [str(uuid.uuid4()) for _ in range(count)]
    return Template(1, {b"pods/%d" % n: stored(uid, rest=uids[n - 1].encode()) for n, uid in enumerate(uids)})


@given(
    uids=st.lists(st.uuids(version=4).map(str), min_size=1, max_size=6, unique=True),
    noise=st.lists(st.binary(max_size=40), min_size=6, max_size=6),
)
def test_copy_replaces_each_uid_of_an_object_everywhere(uids: list[str], noise: list[bytes]) -> None:
    joined = b"".join(piece + uid.encode() for piece, uid in zip(noise, uids, strict=False))
    values = {b"things/%d" % n: stored(uid, rest=joined + NO_UID.encode()) for n, uid in enumerate(uids)}
    copy = dict(Original.of(Template(1, values)).copied())
    assert copy.keys() == values.keys()
    fresh = {uid: uid_of(copy[b"things/%d" % n]) or "" for n, uid in enumerate(uids)}
    assert len({*fresh.values(), *uids}) == 2 * len(uids)
    for key, value in values.items():
        for uid, replacement in fresh.items():
            value = value.replace(uid.encode(), replacement.encode())
        assert copy[key] == value
        assert NO_UID.encode() in copy[key]


def test_copy_replaces_placeholder_with_given_uid() -> None:
    binding_template = template(clusterrolebindings_a=stored(UID, rest=b"user:" + PLACEHOLDER.encode()))
    original = Original.of(binding_template, placeholder=PLACEHOLDER)
    (copy,) = [value for _, value in original.copied(replaced=OWNER.uid)]
    assert f"user:{OWNER.uid}".encode() in copy
    with pytest.raises(ValueUnreadable, match="form of a uid"):
        dict(original.copied(replaced="short"))


def test_copied_objects_have_creation_time_of_the_copy() -> None:
    past, began = dt.datetime(2020, 1, 1, tzinfo=dt.UTC), int(time.time())
    encoded_time = field(8, timestamp(int(past.timestamp())))
    document = {"metadata": {"uid": NO_UID, "creationTimestamp": "2020-01-01T00:00:00Z"}}
    values = template(
        namespaces_a=protobuf(field(5, UID.encode()) + encoded_time, field(3, UID.encode())),
        # A nested time that is no creation time of this object.
        namespaces_b=protobuf(field(5, str(uuid.uuid4()).encode()), field(9, encoded_time)),
        things_c=json.dumps(document).encode(),
    )
    original = Original.of(values)
    copy = dict(original.copied())
    assert [len(value) for value in copy.values()] == [len(value) for value in values.values.values()]
    # The seconds are a varint after three bytes and before two bytes.
    creation_time = creation_time_of(copy[b"namespaces/a"]) or b""
    seconds = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(creation_time[3:-2]))
    assert began <= seconds <= time.time()
    assert encoded_time in copy[b"namespaces/b"]
    created = json.loads(copy[b"things/c"])["metadata"]["creationTimestamp"]
    assert began <= dt.datetime.fromisoformat(created).timestamp() <= time.time()
    assert original.usage("/x/").bytes == sum(len(key) + len(value) for key, value in values.values.items()) + 3 * 3


def test_copy_omits_authentication_config_map_of_api_server() -> None:
    source = Template(
        1,
        {
            b"configmaps/kube-system/extension-apiserver-authentication": stored(UID, rest=b"-----BEGIN CERTIFICATE"),
            b"configmaps/kube-system/other": stored(str(uuid.uuid4())),
        },
    )
    assert [key for key, _ in Original.of(source).copied()] == [b"configmaps/kube-system/other"]


def test_copy_omits_excluded_keys() -> None:
    original = Original.of(
        template(namespaces_a=stored(UID), namespaces_b=stored(str(uuid.uuid4()), rest=UID.encode()))
    )
    copy = dict(original.copied(without={b"namespaces/a"}))
    assert copy.keys() == {b"namespaces/b"}
    assert UID.encode() not in copy[b"namespaces/b"]


def secret(kind: str, *, rest: bytes = b"") -> bytes:
    return protobuf(field(5, str(uuid.uuid4()).encode()), field(2, rest) + field(3, kind.encode()))


def cloned(*groups: dict[bytes, bytes], **settings: Any) -> dict[bytes, bytes]:
    cloning = Cloning(**settings)
    for group in groups:
        cloning.learn(group.items())
    return dict(pair for group in groups for pair in cloning.copied(group.items()))


def test_clone_has_fresh_uids_in_keys_and_values() -> None:
    """An owner may be read after its dependents. The name of a volume contains the uid of its claim."""
    claim = str(uuid.uuid4())
    volume = b"persistentvolumes/pvc-" + claim.encode()
    first = {
        volume: stored(UID, rest=b"pvc-" + claim.encode()),
        b"pods/a": stored(str(uuid.uuid4()), rest=UID.encode()),
    }
    last = {
        b"persistentvolumeclaims/b": stored(claim),
        b"configmaps/c": stored(str(uuid.uuid4()), rest=NO_UID.encode()),
    }
    copy = cloned(first, last, replaced=(PLACEHOLDER, OWNER.uid))
    for former in (UID, claim):
        assert not [key for key, value in copy.items() if former.encode() in key + value]
    (name,) = [key for key in copy if key.startswith(b"persistentvolumes/")]
    fresh = uid_of(copy[b"persistentvolumeclaims/b"]) or ""
    assert name == b"persistentvolumes/pvc-" + fresh.encode()
    assert b"pvc-" + fresh.encode() in copy[name]
    assert (uid_of(copy[name]) or "").encode() in copy[b"pods/a"]
    assert NO_UID.encode() in copy[b"configmaps/c"]


@pytest.mark.parametrize("nodes", [False, True])
def test_clone_omits_issued_credentials_and_expiring_objects(nodes: bool) -> None:
    kept = {
        b"secrets/default/mine": secret("Opaque", rest=b"kubernetes.io/service-account-token"),
        b"configmaps/default/kube-root-ca.crt.mine": stored(str(uuid.uuid4())),
        b"configmaps/default/cluster-info": stored(str(uuid.uuid4())),
        b"shop.example.org/leases/default/a": json.dumps({"metadata": {"uid": str(uuid.uuid4())}}).encode(),
        b"ranges/serviceips": protobuf(b""),
    }
    left_out = {
        b"secrets/default/token": secret("kubernetes.io/service-account-token"),
        b"secrets/kube-system/bootstrap-token-abcdef": secret("bootstrap.kubernetes.io/token"),
        b"configmaps/default/kube-root-ca.crt": stored(str(uuid.uuid4())),
        b"configmaps/kube-public/cluster-info": stored(str(uuid.uuid4())),
        b"configmaps/kube-system/extension-apiserver-authentication": stored(str(uuid.uuid4())),
        b"certificatesigningrequests/a": stored(str(uuid.uuid4())),
        b"leases/kube-system/kube-controller-manager": stored(str(uuid.uuid4())),
        b"events/default/a": b"k8s:enc:secretbox:v1:kplane:",
        b"masterleases/10.0.0.1": b"",
        b"services/endpoints/default/kubernetes": stored(str(uuid.uuid4())),
        b".copy": b"finished",
    }
    of_nodes = {b"minions/a": stored(str(uuid.uuid4())), b"csinodes/a": stored(str(uuid.uuid4()))}
    expected = kept | (of_nodes if nodes else {})
    assert cloned(kept | left_out | of_nodes, nodes=nodes).keys() == expected.keys()


def owned(*owners: str) -> bytes:
    references = [field(13, field(1, b"Lease") + field(3, b"a") + field(4, owner.encode())) for owner in owners]
    return protobuf(field(1, b"mine") + field(5, str(uuid.uuid4()).encode()) + b"".join(references), field(2, b"data"))


@pytest.mark.parametrize("nodes", [False, True])
def test_clone_has_no_reference_to_omitted_owner(nodes: bool) -> None:
    """The garbage collector deletes an object whose owners are all absent."""
    lease, token, node, kept = (str(uuid.uuid4()) for _ in range(4))
    custom = {"metadata": {"uid": UID, "ownerReferences": [{"uid": node}, {"uid": kept}]}, "spec": {"size": 1.5}}
    copy = cloned(
        {
            b"configmaps/a/of-lease": owned(lease),
            b"configmaps/a/of-two": owned(token, kept),
            b"pods/kube-system/mirror": owned(node),
            b"shop.example.org/carts/a/b": json.dumps(custom).encode(),
            b"configmaps/a/kept": stored(kept),
            b"configmaps/a/says-it": stored(str(uuid.uuid4()), rest=lease.encode()),
            b"leases/a/b": stored(lease),
            b"secrets/a/token": protobuf(field(5, token.encode()), field(3, b"kubernetes.io/service-account-token")),
            b"minions/a": stored(node),
        },
        nodes=nodes,
    )
    fresh = uid_of(copy[b"configmaps/a/kept"]) or ""
    assert owners_in(copy[b"configmaps/a/of-lease"]) == 0
    assert (owners_in(copy[b"configmaps/a/of-two"]), fresh.encode() in copy[b"configmaps/a/of-two"]) == (1, True)
    assert owners_in(copy[b"pods/kube-system/mirror"]) == (1 if nodes else 0)
    cart = json.loads(copy[b"shop.example.org/carts/a/b"])
    assert [reference["uid"] for reference in cart["metadata"]["ownerReferences"]][-1] == fresh
    assert (len(cart["metadata"]["ownerReferences"]), cart["spec"]) == (2 if nodes else 1, {"size": 1.5})
    # All other content is unchanged.
    assert uid_of(copy[b"configmaps/a/of-lease"])
    assert copy[b"configmaps/a/of-lease"].endswith(field(2, b"data") + field(3, b"") + field(4, b""))


def owners_in(value: bytes) -> int:
    return value.count(field(1, b"Lease"))


def test_clone_counts_removed_references() -> None:
    lease, cloning = str(uuid.uuid4()), Cloning()
    pairs = {b"configmaps/a/b": owned(lease, lease), b"leases/a/b": stored(lease), b"leases/a/c": b"k8s:enc:x"}
    cloning.learn(pairs.items())
    cloning.copied(pairs.items())
    assert cloning.references_removed == 2


def test_clone_refuses_encrypted_unreadable_or_too_many_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueEncrypted, match="secrets/default/a is encrypted at rest"):
        cloned({b"secrets/default/a": b"k8s:enc:secretbox:v1:kplane:\x00"})
    with pytest.raises(ValueUnreadable, match="things/a: "):
        cloned({b"things/a": b"nothing"})
    monkeypatch.setattr(sys.modules[Cloning.__module__], "MOST_CLONED", 2)
    with pytest.raises(DataError, match="more than 2 objects"):
        cloned({b"pods/%d" % number: stored(str(uuid.uuid4())) for number in range(3)})


def test_original_refuses_template_with_unreadable_value() -> None:
    with pytest.raises(ValueUnreadable):
        Original.of(template(secrets_a=b"k8s:enc:secretbox:v1:kplane:\x00"))


class Cut(Client):
    """Pauses at transaction number `at`: after the transaction took effect if `sent`, otherwise before it is sent."""

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
    clients: list[Cut] = []

    def make(*, at: int, sent: bool) -> Cut:
        clients.append(Cut(etcd, at=at, sent=sent))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


async def _values(client: Client, prefix: str) -> dict[bytes, bytes]:
    return {
        item.key.removeprefix(prefix.encode()): item.value async for page in client.pages(prefix) for item in page.items
    }


async def _is_whole(client: Client, prefix: str, source: Template) -> None:
    """Check that the prefix contains a single complete copy, and no parts of a second copy."""
    copy = await Template.read(client, prefix)
    assert copy.values.keys() == source.values.keys()
    names = {uid_of(source.values[key]): uid_of(value) for key, value in copy.values.items()}
    for key, value in copy.values.items():
        expected = source.values[key]
        for uid, fresh in names.items():
            expected = expected.replace((uid or "").encode(), (fresh or "").encode())
        assert value == expected


@pytest.mark.integration
async def test_usage_of_original_predicts_size_of_copy(client: Client, prefix: str) -> None:
    original, left_out = Original.of(many(20)), [b"pods/3"]
    await claim(client, prefix, owner=OWNER)
    await clone(client, original, prefix, owner=OWNER, without=left_out)
    measurement, prediction = await usage(client, prefix, share=1.0), original.usage(prefix, without=left_out)
    values = await _values(client, prefix)
    mark = len(prefix) + len(COPY_MARK) + len(values.pop(COPY_MARK))
    assert (prediction.keys, prediction.bytes) == (
        19,
        sum(len(prefix) + len(key) + len(value) for key, value in values.items()),
    )
    # Etcd stores metadata with each key.
    assert measurement.keys == prediction.keys + 1
    assert prediction.bytes + mark < measurement.bytes < prediction.bytes + mark + measurement.keys * 40


@pytest.mark.integration
@pytest.mark.parametrize("count", [0, 1, 118, 119, 300])
async def test_repeated_clone_keeps_finished_copy(client: Client, prefix: str, count: int) -> None:
    source = many(count)
    await claim(client, prefix, owner=OWNER)
    assert not await is_copy(client, prefix, owner=OWNER)
    assert await lacks_data(client, prefix, owner=OWNER)
    assert await clone(client, Original.of(source), prefix, owner=OWNER)
    assert not await lacks_data(client, prefix, owner=OWNER)
    await _is_whole(client, prefix, source)
    copy = await _values(client, prefix)
    assert await clone(client, Original.of(source), prefix, owner=OWNER)
    assert await is_copy(client, prefix, owner=OWNER)
    assert await _values(client, prefix) == copy
    assert await delete_owned(client, prefix, owner=OWNER) == count + 1


@pytest.mark.integration
async def test_clone_keeps_existing_keys_and_requires_ownership(
    client: Client, prefix: str, new_prefix: Callable[[], str]
) -> None:
    original = Original.of(many(3))
    await client.put(f"{prefix}namespaces/default".encode(), b"live")
    neighbour = f"{prefix[:-1]}0".encode()
    await client.put(neighbour, b"beside")
    await claim(client, prefix, owner=OWNER, known=True)
    assert not await lacks_data(client, prefix, owner=OWNER)
    assert not await clone(client, original, prefix, owner=OWNER)
    assert await _values(client, prefix) == {b"namespaces/default": b"live"}
    assert (await client.get(neighbour)) is not None

    free_prefix = new_prefix()
    for owner in (None, NAMESAKE):
        if owner is not None:
            await claim(client, free_prefix, owner=owner)
        with pytest.raises(NotOwned):
            await clone(client, original, free_prefix, owner=OWNER)
        assert await client.count(free_prefix) == 0


@pytest.mark.integration
async def test_clone_keeps_copy_of_former_owner_as_data(client: Client, prefix: str) -> None:
    original = Original.of(many(3))
    await claim(client, prefix, owner=NAMESAKE)
    await clone(client, original, prefix, owner=NAMESAKE)
    await client.put(b"/kplane.dev/owners" + prefix.encode(), OWNER.encode())
    before = await _values(client, prefix)
    assert not await clone(client, original, prefix, owner=OWNER)
    assert not await is_copy(client, prefix, owner=OWNER)
    assert await _values(client, prefix) == before


@pytest.mark.integration
async def test_discard_unfinished_removes_only_copy_of_owner(
    client: Client, cut: Callable[..., Cut], prefix: str
) -> None:
    original = Original.of(many(300))
    await claim(client, prefix, owner=OWNER)
    paused_client = cut(at=2, sent=True)
    async with asyncio.TaskGroup() as group:
        former_attempt = group.create_task(_quietly(clone(paused_client, original, prefix, owner=OWNER)))
        await paused_client.reached.wait()
        before = await _values(client, prefix)
        await discard_unfinished(client, prefix, owner=NAMESAKE)
        assert await _values(client, prefix) == before
        await discard_unfinished(client, prefix, owner=OWNER)
        assert await client.count(prefix) == 0
        paused_client.go.set()
        await former_attempt
        # A late call of the former attempt finds its mark deleted.
        assert await client.count(prefix) == 0
    await clone(client, original, prefix, owner=OWNER)
    copy = await _values(client, prefix)
    await discard_unfinished(client, prefix, owner=OWNER)
    assert await _values(client, prefix) == copy


@pytest.mark.integration
@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3])
async def test_late_calls_of_interrupted_copy_change_no_keys(
    client: Client, cut: Callable[..., Cut], prefix: str, at: int, sent: bool
) -> None:
    source = many(300)
    original = Original.of(source)
    await claim(client, prefix, owner=OWNER)
    paused_client = cut(at=at, sent=sent)
    async with asyncio.TaskGroup() as group:
        former_attempt = group.create_task(_quietly(clone(paused_client, original, prefix, owner=OWNER)))
        await paused_client.reached.wait()
        finished = at == 3 and sent
        assert await is_copy(client, prefix, owner=OWNER) is finished
        assert await lacks_data(client, prefix, owner=OWNER) is not finished
        nothing_written = at == 1 and not sent
        assert await lacks_data(client, prefix, owner=NAMESAKE) is nothing_written
        assert await clone(client, original, prefix, owner=OWNER)
        copy = await _values(client, prefix)
        paused_client.go.set()
    # The former attempt may also return True, if its work was done or it sees the finished copy.
    assert former_attempt.result() in {None, True}
    await _is_whole(client, prefix, source)
    assert await _values(client, prefix) == copy


@pytest.mark.integration
async def test_clone_stops_when_owner_loses_prefix(client: Client, cut: Callable[..., Cut], prefix: str) -> None:
    original = Original.of(many(300))
    await claim(client, prefix, owner=OWNER)
    paused_client = cut(at=2, sent=False)
    clone_task = asyncio.create_task(clone(paused_client, original, prefix, owner=OWNER))
    await paused_client.reached.wait()
    await client.put(b"/kplane.dev/owners" + prefix.encode(), NAMESAKE.encode())
    before = await _values(client, prefix)
    paused_client.go.set()
    with pytest.raises(NotOwned):
        await clone_task
    assert await _values(client, prefix) == before
    # The next owner has these keys as data, and not as a copy.
    assert not await clone(client, original, prefix, owner=NAMESAKE)
    assert await _values(client, prefix) == before


async def _quietly(call: Any) -> Any:
    try:
        return await call
    except DataError:
        return None
