"""Records of the keys of a control plane, apart from their Secret. Keys that differ from the record are refused."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from kplane.api import ControlPlane, RotationPhase
from kplane.api.names import (
    CONTROL_PLANE_LABEL,
    GROUP,
    KEY_FINGERPRINTS_ANNOTATION,
    ROTATE_ANNOTATION,
    UID_ANNOTATION,
)
from kplane.api.reasons import Reason
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.namespaces import ManagementNamespaces
from kplane.controlplane_operator.credentials.key_records import KeyRecord, settled_fingerprints
from kplane.controlplane_operator.credentials.store import AUTHORITIES_SECRET, TenantKeys
from kplane.controlplane_operator.grants import Access, Account
from kplane.controlplane_operator.secret_access import SecretAccess
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.events import Events
from kplane.controlplane_operator.status.writer import StatusWriter
from kplane.controlplane_operator.watch.stores import Stores
from kplane.controlplane_operator.watch.triggers import Triggers
from kplane.pki.authorities import TenantAuthorities
from kplane.pki.entries import data_of
from kplane.pki.generations import Generations
from kplane.pki.primitives import create_signing_key, public_key
from kplane.pki.rotation import RotationWish, next_rotation
from kplane.provider import Cache, Conflict, ProviderError, Unreachable
from kplane.provider.client.resources import NAMESPACES, SECRETS
from kplane.provider.testing import FakeCluster
from tests.controlplane_operator.informing import list_again, store_writes

NAMESPACE = "kplane-cp-acme"
LATER = datetime(2100, 1, 1, tzinfo=UTC)
ENTRIES = ("serving-ca", "client-ca", "front-proxy-ca", "etcd-ca")
LOST = Unreachable("the management cluster", kind="connect")


def acme(*, published: bool = True, **annotations: str) -> ControlPlane:
    entries = {f"{GROUP}/{name}": value for name, value in annotations.items()}
    metadata = {"name": "acme", "uid": "1", "annotations": entries}
    status = {"endpoint": "https://127.0.0.1:1"} if published else {}
    return ControlPlane.model_validate({"metadata": metadata, "spec": {}, "status": status})


async def no_data(_: ControlPlane) -> bool:
    return False


class World:
    """A management cluster with the namespace of a control plane. Operators run one after another."""

    def __init__(self) -> None:
        self.cluster = FakeCluster("management")
        self.client = self.cluster.make_client()
        self.user = self.cluster.make_client()
        """Client of users, whose writes reach the caches by `watch`."""
        self.clock: Callable[[], datetime] = lambda: datetime.now(UTC)
        self.begin()

    def begin(self) -> None:
        """Start another operator, with empty caches."""
        events = Events(self.client)
        self.context = OperatorContext(
            client=self.client,
            stores=(stores := Stores()),
            triggers=Triggers(),
            status=StatusWriter(self.client, events=events),
            events=events,
            access=Access(self.client, Cache(self.client), shared=Account("kplane-system", "mcm")),
            secrets=SecretAccess(self.client, stores=stores, namespace="kplane-system"),
        )
        store_writes(self.client, stores)
        self.keys = TenantKeys(self.context, now=lambda: self.clock())

    async def watch(self) -> None:
        """Fill the caches of the operator with the present objects."""
        await list_again(self.client, (self.context.stores.namespaces, self.context.stores.secrets))

    async def authorities(self, control_plane: ControlPlane | None = None) -> TenantAuthorities:
        """Return the keys, as each pass does before it uses them."""
        return await self.keys.authorities(control_plane or acme(), has_data=no_data)

    async def secret(self) -> dict[str, bytes]:
        return data_of(await self.client.get(SECRETS, AUTHORITIES_SECRET, namespace=NAMESPACE))

    async def replace(self, data: Mapping[str, bytes | None], *, seen: bool = True) -> None:
        """Change entries of the Secret, as a user does."""
        encoded = {k: base64.b64encode(v).decode() if v is not None else None for k, v in data.items()}
        await self.user.patch(SECRETS, AUTHORITIES_SECRET, {"data": encoded}, namespace=NAMESPACE)
        if seen:
            await self.watch()

    async def restore(self, data: Mapping[str, bytes]) -> None:
        """Restore a backup of the Secret, as a user does."""
        await self.replace(dict.fromkeys(await self.secret()) | dict(data))

    async def record(self) -> KeyRecord | None:
        return KeyRecord.of(await self.client.get(NAMESPACES, NAMESPACE))

    async def forget(self, value: str | None = None) -> None:
        """Remove or change the record, as a user does."""
        body = {"metadata": {"annotations": {KEY_FINGERPRINTS_ANNOTATION: value}}}
        await self.user.patch(NAMESPACES, NAMESPACE, body)
        await self.watch()

    async def refused(self) -> str:
        """Assert that the keys are refused, and return the message."""
        with pytest.raises(ConditionError) as caught:
            await self.authorities()
        assert caught.value.reason is Reason.KEYS_CHANGED
        return caught.value.message


@contextlib.asynccontextmanager
async def worlds() -> AsyncIterator[World]:
    world = World()
    metadata = {"name": NAMESPACE, "labels": {CONTROL_PLANE_LABEL: "acme"}, "annotations": {UID_ANNOTATION: "1"}}
    await world.user.create(NAMESPACES, {"metadata": metadata})
    await world.user.create(NAMESPACES, {"metadata": {"name": "kplane-system"}})
    await world.watch()
    try:
        yield world
    finally:
        await world.client.aclose()
        await world.user.aclose()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with worlds() as instance:
        await instance.authorities(acme(published=False))
        yield instance


def others() -> dict[str, bytes]:
    """Return valid keys of another control plane of the same name."""
    return Generations(TenantAuthorities.create("acme")).to_secret()


async def test_new_keys_are_recorded_when_they_are_returned(world: World) -> None:
    record = await world.record()
    assert record == KeyRecord((Generations.from_secret(await world.secret()).fingerprints(),))
    assert record is not None
    assert set(record.states[0]) == {*(f"{name}.key" for name in ENTRIES), "sa.key", "encryption.key"}


async def test_record_reveals_no_key(world: World) -> None:
    record = await world.record()
    assert record is not None
    for key in (await world.secret()).values():
        assert key.hex() not in record.annotation()
        assert base64.b64encode(key).decode() not in record.annotation()
    assert all(len(value) == 64 for value in record.states[0].values())


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize(("verb", "kind"), [("patch", NAMESPACES), ("create", SECRETS)])
@pytest.mark.parametrize("takes_effect", [False, True])
async def test_creation_after_failed_write_records_its_keys(
    verb: str, kind: Any, *, takes_effect: bool, ends: bool
) -> None:
    async with worlds() as world:
        world.cluster.fail(LOST, verb=verb, kind=kind, takes_effect=takes_effect)
        with pytest.raises(Unreachable):
            await world.authorities(acme(published=False))
        if ends:
            world.begin()
        if ends or kind is NAMESPACES:
            # After a lost answer, another write of the namespace is a Conflict until the operator has seen the first.
            await world.watch()
        await world.authorities(acme(published=False))
        assert await world.record() == KeyRecord((Generations.from_secret(await world.secret()).fingerprints(),))


async def test_keys_are_recorded_before_their_secret_exists() -> None:
    async with worlds() as world:
        world.cluster.fail(LOST, verb="create", kind=SECRETS)
        with pytest.raises(Unreachable):
            await world.authorities(acme(published=False))
        assert await world.record() is not None
        # The operator dies here. Another user creates the Secret before the next operator starts.
        metadata = {"name": AUTHORITIES_SECRET, "namespace": NAMESPACE, "annotations": {UID_ANNOTATION: "1"}}
        await world.user.create(SECRETS, {"metadata": {**metadata, "labels": {CONTROL_PLANE_LABEL: "acme"}}})
        await world.restore(others())
        world.begin()
        await world.watch()
        await world.refused()


async def test_keys_that_change_before_the_first_pass_ends_are_refused() -> None:
    async with worlds() as world:
        await world.authorities(acme(published=False))
        await world.replace({"sa.key": create_signing_key()})
        world.begin()
        await world.watch()
        await world.refused()


async def test_restored_keys_are_recorded_before_their_secret_exists() -> None:
    async with worlds() as world:
        world.cluster.fail(LOST, verb="create", kind=SECRETS)
        with pytest.raises(Unreachable):
            await world.keys.restore(acme(published=False), data=(data := others()))
        assert await world.record() == KeyRecord((Generations.from_secret(data).fingerprints(),))
        await world.keys.restore(acme(published=False), data=data)
        assert await world.secret() == data
        await world.authorities(acme(published=False))


@pytest.mark.parametrize("restores", [False, True])
async def test_existing_secret_missing_in_cache_is_kept_and_recorded(*, restores: bool) -> None:
    async with worlds() as world:
        metadata = {"name": AUTHORITIES_SECRET, "namespace": NAMESPACE, "annotations": {UID_ANNOTATION: "1"}}
        await world.user.create(SECRETS, {"metadata": {**metadata, "labels": {CONTROL_PLANE_LABEL: "acme"}}})
        await world.replace(others(), seen=False)
        data = await world.secret()
        if restores:
            await world.keys.restore(acme(published=False), data=others())
            assert await world.record() is None
        await world.authorities(acme(published=False))
        assert await world.secret() == data
        assert await world.record() == KeyRecord((Generations.from_secret(data).fingerprints(),))


async def test_keys_of_a_version_without_records_are_adopted_once(world: World) -> None:
    await world.forget()
    await world.authorities()
    backup = await world.secret()
    await world.replace({"sa.key": create_signing_key()})
    assert "another sa.key than before" in await world.refused()
    await world.restore(backup)
    await world.authorities()


@pytest.mark.parametrize("entry", ["encryption.key", "sa.key", *ENTRIES])
async def test_other_valid_key_is_refused_with_name_of_its_entry(world: World, entry: str) -> None:
    backup, other_keys = await world.secret(), others()
    names = [name for name in other_keys if name == entry or name.rpartition(".")[0] == entry]
    await world.replace({name: other_keys[name] for name in names})
    message = await world.refused()
    key = entry if entry.endswith(".key") else f"{entry}.key"
    assert f"Secret {NAMESPACE}/control-plane-authorities has another {key} than before" in message
    assert KEY_FINGERPRINTS_ANNOTATION in message
    for method in (world.keys.present, world.keys.exported):
        with pytest.raises(ConditionError, match="than before"):
            await method(acme())
    await world.restore(backup)
    await world.authorities()


async def test_refusal_names_all_entries_that_differ(world: World) -> None:
    other_keys = others()
    await world.replace({name: other_keys[name] for name in ("sa.key", "encryption.key")})
    assert "another encryption.key and sa.key than before" in await world.refused()


async def test_same_key_in_another_encoding_is_accepted(world: World) -> None:
    key = load_pem_private_key((await world.secret())["sa.key"], password=None)
    await world.replace({"sa.key": key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())})
    await world.authorities()


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "[]",
        "{}",
        "x",
        "[1]",
        '[{"sa.key": 1}]',
        # The status, to which the record is copied, does not allow these values.
        json.dumps([{"sa.key": "0" * 65}]),
        json.dumps([{"sa.key": "x" * 64}]),
        json.dumps([{f"{number}.key": "0" * 64 for number in range(17)}]),
    ],
)
async def test_present_keys_are_accepted_if_record_is_removed_or_invalid(world: World, value: str | None) -> None:
    await world.replace({"encryption.key": secrets.token_bytes(32)})
    await world.refused()
    await world.forget(value)
    await world.authorities()
    assert await world.record() == KeyRecord((Generations.from_secret(await world.secret()).fingerprints(),))


async def test_keys_are_checked_against_live_secret_and_not_cache(world: World) -> None:
    """While a control plane sleeps, the operator reads its Secrets every ten minutes only."""
    backup = await world.secret()
    await world.replace({"sa.key": create_signing_key()})
    await world.replace({"sa.key": backup["sa.key"]}, seen=False)
    await world.authorities()
    await world.replace({"sa.key": None})
    await world.replace({"sa.key": backup["sa.key"]}, seen=False)
    await world.authorities()


def _of_another_curve(encoded: bytes) -> bytes:
    """Return a PEM whose key is on a curve that no library knows."""
    head, *lines, tail = encoded.strip().splitlines()
    supported_curve, unsupported_curve = (bytes.fromhex(f"06082a8648ce3d0301{last}") for last in ("07", "7f"))
    der = base64.b64decode(b"".join(lines)).replace(supported_curve, unsupported_curve)
    return b"\n".join((head, base64.b64encode(der), tail))


@pytest.mark.parametrize(
    ("entry", "damage", "cause"),
    [
        ("sa.key", lambda _: None, r"it has no entry sa\.key"),
        ("sa.key", lambda _: b"x", r"entry sa\.key: not a PEM private key"),
        ("sa.key", _of_another_curve, r"entry sa\.key: not a private key that can be used"),
        ("encryption.key", lambda _: b"short", r"entry encryption\.key: it is not of 32 bytes"),
        ("client-ca.crt", lambda _: b"x", r"entries client-ca\.crt and client-ca\.key: not a PEM certificate"),
        ("client-ca.crt", _of_another_curve, "the certificate has no key that can be used"),
        ("client-ca.key", lambda _: create_signing_key(), "certificate and key do not belong together"),
    ],
)
async def test_damaged_keys_are_refused_with_reason_keys_unusable(
    world: World, entry: str, damage: Callable[[bytes], bytes | None], cause: str
) -> None:
    backup = await world.secret()
    await world.replace({entry: damage(backup[entry])})
    with pytest.raises(ConditionError, match=f"is damaged: .*{cause}.*; restore it") as caught:
        await world.authorities()
    assert caught.value.reason is Reason.KEYS_UNUSABLE
    await world.restore(backup)
    await world.authorities()


async def test_ca_not_valid_yet_is_reported_with_time_and_remedy(world: World) -> None:
    before = await world.secret()
    world.clock = lambda: datetime.now(UTC) - timedelta(days=40)
    with pytest.raises(ConditionError) as caught:
        await world.authorities()
    assert caught.value.reason is Reason.FAILED
    assert all(f"{name}.crt" in caught.value.message for name in ENTRIES)
    valid_from = datetime.now(UTC) - timedelta(days=30)
    assert f"recovers by itself at {valid_from:%Y-%m-%d %H:}" in caught.value.message
    assert f"set annotation {ROTATE_ANNOTATION} to a new value" in caught.value.message
    assert await world.secret() == before


async def test_rotation_reissues_ca_not_valid_yet_with_the_same_keys(
    world: World,
) -> None:
    before, record = await world.secret(), await world.record()
    world.clock = lambda: datetime.now(UTC) - timedelta(days=40)
    await world.authorities(acme(rotate="a"))
    after = await world.secret()
    for name in ENTRIES:
        assert after[f"{name}.crt"] != before[f"{name}.crt"]
        assert public_key(after[f"{name}.key"]) == public_key(before[f"{name}.key"])
    assert after["sa.key"] == before["sa.key"]
    # The keys are the same, and the rotation is still to come.
    assert await world.record() == record
    assert Generations.from_secret(after).rotation is None


Step = Callable[[World], Awaitable[None]]


async def step(world: World) -> None:
    """Take the next step of a rotation, as the pass of an operator does after it has used the keys."""
    rotation = (await world.authorities()).rotation
    wish = RotationWish("a" if rotation is None else rotation.value)
    if rotation is not None and rotation.phase is RotationPhase.DONE:
        wish = RotationWish(f"{rotation.value}a")
    next_state = next_rotation(rotation, wish=wish, settled=True, now=LATER)
    if rotation is not None and rotation.phase is RotationPhase.OVERLAPPING:
        next_state = next_rotation(
            rotation, wish=RotationWish(rotation.value, finish=rotation.value), settled=True, now=LATER
        )
    if next_state is not None:
        await world.keys.advance(acme(), known=rotation, following=next_state)


def _interrupted(kind: Any, *, takes_effect: bool, ends: bool) -> Step:
    async def interrupted(world: World) -> None:
        """Take a step until the first write of that kind fails. Then the operator dies, or its cache stays behind."""
        world.cluster.fail(LOST, verb="patch", kind=kind, takes_effect=takes_effect)
        with contextlib.suppress(ProviderError):
            await step(world)
        # Use up the fault, so that no write of a later step fails.
        with contextlib.suppress(ProviderError):
            await world.user.patch(kind, "none", {}, namespace=NAMESPACE if kind is SECRETS else None)
        if ends:
            world.begin()
            await world.watch()

    return interrupted


async def whole(world: World) -> None:
    with contextlib.suppress(Conflict):  # from a stale cache
        await step(world)


STEPS: dict[str, Step] = {
    "whole": whole,
    "seen": World.watch,
    **{
        f"{kind.plural}, {'done' if takes_effect else 'not done'}, {'ends' if ends else 'behind'}": _interrupted(
            kind, takes_effect=takes_effect, ends=ends
        )
        for kind in (SECRETS, NAMESPACES)
        for takes_effect in (False, True)
        for ends in (False, True)
    },
}


@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=12))
@settings(max_examples=30)
def test_keys_are_accepted_after_death_at_any_write_of_rotation(names: list[str]) -> None:
    async def play() -> None:
        async with worlds() as world:
            await world.authorities(acme(published=False))
            versions = [await world.secret()]
            for name in names:
                await STEPS[name](world)
                present = await world.secret()
                # Raises ConditionError if the keys differ from the record.
                with contextlib.suppress(Conflict):
                    await world.authorities()
                if present != versions[-1]:
                    versions.append(present)
            record, present = await world.record(), Generations.from_secret(versions[-1]).fingerprints()
            assert record is not None
            assert record.allows(present)
            # A backup of the Secret is accepted if and only if it has the present keys.
            if len(record.states) == 1:
                for backup in versions:
                    await world.restore(backup)
                    if Generations.from_secret(backup).fingerprints() == present:
                        await world.authorities()
                    else:
                        await world.refused()

    asyncio.run(play())


async def test_rotation_does_not_advance_with_unrecorded_keys(world: World) -> None:
    rotation = (await world.authorities()).rotation
    next_state = next_rotation(rotation, wish=RotationWish("a"), settled=True, now=LATER)
    assert next_state is not None
    await world.replace({"sa.key": create_signing_key()})
    assert not await world.keys.advance(acme(), known=rotation, following=next_state)
    record = await world.record()
    assert record is not None
    assert len(record.states) == 1


async def test_recreated_namespace_has_record_and_refuses_other_keys(world: World) -> None:
    namespace = await world.user.get(NAMESPACES, NAMESPACE)
    fingerprints = settled_fingerprints(namespace)
    former = acme()
    status = former.status.model_copy(
        update={"namespace_uid": namespace["metadata"]["uid"], "key_fingerprints": fingerprints}
    )
    keys = await world.secret()
    await world.user.patch(SECRETS, AUTHORITIES_SECRET, {"metadata": {"finalizers": None}}, namespace=NAMESPACE)
    await world.user.delete(SECRETS, AUTHORITIES_SECRET, namespace=NAMESPACE)
    await world.user.delete(NAMESPACES, NAMESPACE)
    await world.watch()

    async def no_take_over(_: ControlPlane, *, former: str) -> None:
        raise AssertionError(f"the data are those of {former}")

    async def no_volume(_: ControlPlane) -> None:
        return None

    control_plane = former.model_copy(update={"status": status})
    await ManagementNamespaces(world.context).ensure(control_plane, take_over=no_take_over, volume=no_volume)
    assert settled_fingerprints(await world.user.get(NAMESPACES, NAMESPACE)) == fingerprints
    # A user restores the Secret, first from a wrong backup.
    await world.user.create(
        SECRETS,
        {
            "metadata": {
                "name": AUTHORITIES_SECRET,
                "namespace": NAMESPACE,
                "labels": {CONTROL_PLANE_LABEL: "acme"},
                "annotations": {UID_ANNOTATION: "1"},
            }
        },
    )
    await world.restore(others())
    await world.refused()
    await world.restore(keys)
    await world.authorities()


def test_settled_fingerprints_are_empty_for_record_of_two_states() -> None:
    states: tuple[dict[str, str], ...] = ({"sa.key": "1" * 64}, {"sa.key": "2" * 64})
    for record, fingerprints in ((KeyRecord(states[:1]), states[0]), (KeyRecord(states), {})):
        annotations = {KEY_FINGERPRINTS_ANNOTATION: record.annotation()}
        assert settled_fingerprints({"metadata": {"name": NAMESPACE, "annotations": annotations}}) == fingerprints
    assert settled_fingerprints({"metadata": {"name": NAMESPACE}}) == {}


def test_record_is_read_as_it_was_written() -> None:
    record = KeyRecord(({"sa.key": "1" * 64}, {"sa.key": "2" * 64, "next-sa.key": "3" * 64}))
    metadata = {"name": NAMESPACE, "annotations": {KEY_FINGERPRINTS_ANNOTATION: record.annotation()}}
    assert KeyRecord.of({"metadata": metadata}) == record
    assert json.loads(record.annotation()) == list(record.states)


def test_differing_compares_entries_with_nearest_state() -> None:
    record = KeyRecord(({"a": "1", "b": "1", "c": "1"}, {"a": "2", "b": "2", "c": "2", "next-c": "3"}))
    assert record.differing({"a": "1", "b": "1", "c": "9"}) == ["c"]
    assert record.differing({"a": "2", "b": "2", "c": "2"}) == ["next-c"]
