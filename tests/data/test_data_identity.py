"""Identities of data in a real etcd distinguish lost data from new data."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from kplane.data import (
    Client,
    ConditionNotMet,
    DataLost,
    Delete,
    Owner,
    ServedData,
    claim,
    delete_owned,
    identify,
    identity_key,
    identity_of,
    owned_by,
    release,
    set_identity,
)

pytestmark = pytest.mark.integration

ACME = Owner("6f1c", "acme")
UNKNOWN = ServedData(identity=None, cluster_uid=None)
"""The record of a control plane that an earlier version of kplane published."""


async def serve(client: Client, prefix: str, *, uid: str = "a") -> None:
    """Write the namespace that each API server writes."""
    await client.put(f"{prefix}namespaces/kube-system".encode(), json.dumps({"metadata": {"uid": uid}}).encode())


async def test_identify_writes_an_identity_once(client: Client, prefix: str) -> None:
    identity = await identify(client, prefix, served=None)
    assert await identity_of(client, prefix) == identity
    assert await identify(client, prefix, served=None) == identity
    await serve(client, prefix)
    assert await identify(client, prefix, served=ServedData(identity, None)) == identity


async def test_identify_adopts_used_data_of_an_earlier_version(client: Client, prefix: str) -> None:
    await serve(client, prefix)
    assert await identify(client, prefix, served=UNKNOWN) == await identity_of(client, prefix)


@pytest.mark.parametrize("left", ["identity", "data", "nothing", "other data"])
async def test_identify_raises_data_lost_for_missing_or_other_data(client: Client, prefix: str, left: str) -> None:
    await serve(client, prefix)
    identity = await identify(client, prefix, served=UNKNOWN)
    if left != "identity":
        await client.apply([Delete(identity_key(prefix))])
    if left != "data":
        await client.delete_prefix(prefix)
    if left == "other data":
        await serve(client, prefix)
        await identify(client, prefix, served=UNKNOWN)
    with pytest.raises(DataLost, match=prefix):
        await identify(client, prefix, served=ServedData(identity, None))


async def test_identify_raises_data_lost_for_kube_system_with_another_uid(client: Client, prefix: str) -> None:
    """An API server that runs during the deletion of its keys creates its namespaces again."""
    await serve(client, prefix)
    identity = await identify(client, prefix, served=UNKNOWN)
    assert await identify(client, prefix, served=ServedData(identity, "a")) == identity
    await serve(client, prefix, uid="b")
    with pytest.raises(DataLost, match="namespace kube-system has uid b"):
        await identify(client, prefix, served=ServedData(identity, "a"))


async def test_identify_accepts_encrypted_namespace(client: Client, prefix: str) -> None:
    await client.put(f"{prefix}namespaces/kube-system".encode(), b"k8s:enc:aesgcm:v1:key1:x")
    identity = await identify(client, prefix, served=UNKNOWN)
    assert await identify(client, prefix, served=ServedData(identity, "a")) == identity


async def test_identify_replaces_identity_of_accepted_loss_once(client: Client, prefix: str) -> None:
    lost_identity = await identify(client, prefix, served=None)
    new_identity = await identify(client, prefix, served=None, given_up=lost_identity)
    assert new_identity != lost_identity
    assert (
        await identify(client, prefix, served=None, given_up=lost_identity)
        == new_identity
        == await identity_of(client, prefix)
    )


async def test_identify_raises_data_lost_for_empty_published_data(client: Client, prefix: str) -> None:
    with pytest.raises(DataLost, match="has no data"):
        await identify(client, prefix, served=UNKNOWN)
    assert await identity_of(client, prefix) is None


async def test_identify_with_owner_condition_requires_ownership(client: Client, prefix: str) -> None:
    with pytest.raises(ConditionNotMet):
        await identify(client, prefix, served=None, only_if=[owned_by(prefix, ACME)])
    await claim(client, prefix, owner=ACME)
    assert await identify(client, prefix, served=None, only_if=[owned_by(prefix, ACME)])


async def test_set_identity_may_be_repeated_for_moved_data(client: Client, new_prefix: Callable[[], str]) -> None:
    source, target = new_prefix(), new_prefix()
    identity = await identify(client, source, served=None)
    for _ in range(2):
        await set_identity(client, target, identity)
    assert await identity_of(client, target) == identity


async def test_deletion_and_release_remove_identity(client: Client, new_prefix: Callable[[], str]) -> None:
    for operation in (delete_owned, release):
        prefix = new_prefix()
        await claim(client, prefix, owner=ACME)
        await identify(client, prefix, served=None)
        assert await operation(client, prefix, owner=ACME) in {0, True}
        assert await identity_of(client, prefix) is None
