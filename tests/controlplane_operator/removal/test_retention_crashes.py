"""An operator that crashes between any two writes loses no keys, and the next operator continues from there.

The management cluster is real, with its garbage collector.
"""

from __future__ import annotations

import contextlib

import pytest

from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.provider import NotFound
from kplane.provider.client.resources import SECRETS

from .conftest import (
    AUTHORITIES,
    Data,
    Mortal,
    Operator,
    authorities,
    begin,
    dying_at_every_write,
    gone,
    record_of,
    remove_all,
    token,
)

pytestmark = pytest.mark.integration

_GROUP = "controlplane.kplane.dev"


@pytest.mark.parametrize("propagation", ["Background", "Foreground", "Orphan"])
async def test_retain_and_adoption_survive_a_crash_at_every_write(client: Mortal, propagation: str) -> None:
    name, data = f"mortal-{propagation.lower()}", Data()
    uid = await begin(client, name, policy="Retain")
    tenant_authorities = await Operator(client, data).make(name)
    keys = await authorities(client, name)
    await client.delete(CONTROL_PLANES, name, propagation=propagation)

    tokens = set[str | None]()

    async def remove() -> None:
        try:
            with contextlib.suppress(NotFound):
                await Operator(client, data).remove(name)
        finally:
            # After any write, and at any time of garbage collection, the keys and the record of their owner exist.
            client.deaths = None
            assert await authorities(client, name) == keys
            namespace = await record_of(client, name)
            assert "ownerReferences" not in namespace
            tokens.add(namespace["annotations"].get(f"{_GROUP}/adoption-token"))
            if await gone(client, name):
                assert namespace["annotations"][f"{_GROUP}/retained-uid"] == uid

    # Two crashes for each write: three steps, a record, three Secrets, the protection of the keys, a finalizer.
    assert await dying_at_every_write(client, remove) == 18
    assert data.kept
    secrets = (await client.list(SECRETS, namespace=f"kplane-cp-{name}")).items
    assert [item["metadata"]["name"] for item in secrets] == [AUTHORITIES]
    assert tokens == {None, await token(client, name)}

    heir = await begin(client, name, policy="Destroy", adopt=await token(client, name))

    async def adopt() -> None:
        assert await Operator(client, data).make(name) == tenant_authorities
        # An API server that was left behind loses its access before any record names the new owner of the data.
        assert set(data.shut_out_of) == {uid}

    # Two crashes for each write: a record, the authorities, two Secrets.
    assert await dying_at_every_write(client, adopt) == 8
    assert await authorities(client, name) == keys
    secret = await client.get(SECRETS, AUTHORITIES, namespace=f"kplane-cp-{name}")
    assert secret["metadata"]["annotations"][f"{_GROUP}/uid"] == heir

    assert f"{_GROUP}/adoption-token" not in (await record_of(client, name))["annotations"]

    await client.delete(CONTROL_PLANES, name)
    # Two crashes for each write: five steps, the protection of the keys, a namespace, a finalizer.
    assert await dying_at_every_write(client, lambda: remove_all(Operator(client, data), name)) == 16
    assert not data.kept
