"""Identities of data in a real etcd: lost data are told from new ones."""

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
    made = await identify(client, prefix, served=None)
    assert await identity_of(client, prefix) == made
    assert await identify(client, prefix, served=None) == made
    await serve(client, prefix)
    assert await identify(client, prefix, served=ServedData(made, None)) == made


async def test_identify_adopts_used_data_of_an_earlier_version(client: Client, prefix: str) -> None:
    await serve(client, prefix)
    assert await identify(client, prefix, served=UNKNOWN) == await identity_of(client, prefix)


@pytest.mark.parametrize("left", ["identity", "data", "nothing", "other data"])
async def test_identify_raises_data_lost_unless_all_is_there(client: Client, prefix: str, left: str) -> None:
    await serve(client, prefix)
    made = await identify(client, prefix, served=UNKNOWN)
    if left != "identity":
        await client.apply([Delete(identity_key(prefix))])
    if left != "data":
        await client.delete_prefix(prefix)
    if left == "other data":
        await serve(client, prefix)
        await identify(client, prefix, served=UNKNOWN)
    with pytest.raises(DataLost, match=prefix):
        await identify(client, prefix, served=ServedData(made, None))


async def test_identify_raises_data_lost_for_kube_system_with_another_uid(client: Client, prefix: str) -> None:
    """An API server that runs while its keys are deleted makes its namespaces again."""
    await serve(client, prefix)
    made = await identify(client, prefix, served=UNKNOWN)
    assert await identify(client, prefix, served=ServedData(made, "a")) == made
    await serve(client, prefix, uid="b")
    with pytest.raises(DataLost, match="namespace kube-system has uid b"):
        await identify(client, prefix, served=ServedData(made, "a"))


async def test_identify_takes_an_encrypted_namespace_as_it_is(client: Client, prefix: str) -> None:
    await client.put(f"{prefix}namespaces/kube-system".encode(), b"k8s:enc:aesgcm:v1:key1:x")
    made = await identify(client, prefix, served=UNKNOWN)
    assert await identify(client, prefix, served=ServedData(made, "a")) == made


async def test_identify_replaces_the_identity_of_an_accepted_loss_once(client: Client, prefix: str) -> None:
    lost = await identify(client, prefix, served=None)
    renewed = await identify(client, prefix, served=None, given_up=lost)
    assert renewed != lost
    assert await identify(client, prefix, served=None, given_up=lost) == renewed == await identity_of(client, prefix)


async def test_identify_raises_data_lost_for_empty_used_data_of_unknown_identity(client: Client, prefix: str) -> None:
    with pytest.raises(DataLost, match="has no data"):
        await identify(client, prefix, served=UNKNOWN)
    assert await identity_of(client, prefix) is None


async def test_only_the_owner_writes_an_identity(client: Client, prefix: str) -> None:
    with pytest.raises(ConditionNotMet):
        await identify(client, prefix, served=None, only_if=[owned_by(prefix, ACME)])
    await claim(client, prefix, owner=ACME)
    assert await identify(client, prefix, served=None, only_if=[owned_by(prefix, ACME)])


async def test_data_that_move_keep_their_identity(client: Client, new_prefix: Callable[[], str]) -> None:
    source, target = new_prefix(), new_prefix()
    made = await identify(client, source, served=None)
    for _ in range(2):
        await set_identity(client, target, made)
    assert await identity_of(client, target) == made


async def test_an_identity_goes_with_its_data(client: Client, new_prefix: Callable[[], str]) -> None:
    for end in (delete_owned, release):
        prefix = new_prefix()
        await claim(client, prefix, owner=ACME)
        await identify(client, prefix, served=None)
        assert await end(client, prefix, owner=ACME) in {0, True}
        assert await identity_of(client, prefix) is None
