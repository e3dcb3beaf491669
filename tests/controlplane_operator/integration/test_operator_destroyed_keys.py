"""Deletion of the keys of a tenant on a real shared etcd with neighbours."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kplane.controlplane_operator.shared_etcd.keyspace import Keyspace, key_prefix
from kplane.data import Client, Owner
from kplane.data._proto import etcd_pb2 as pb
from kplane.data.rpc import RANGE
from kplane.embedded.handle import Handle

pytestmark = pytest.mark.integration

PATHS = st.lists(
    st.from_regex(r"[ab](-?[ab0]){0,2}", fullmatch=True) | st.sampled_from(["clusters", "root", "registry"]),
    min_size=2,
    max_size=5,
    unique=True,
)


OWNER = Owner("uid")
BESIDE = {b"/clusters", b"/clusters0", b"/", b"a"}


async def _everything(client: Client) -> dict[bytes, tuple[bytes, int]]:
    """Return all keys of the etcd without keys that have a lease: such keys of a former test may expire."""
    request = pb.RangeRequest(key=b"\0", range_end=b"\0")
    pairs = (await client.connection.call(RANGE, request, timeout_seconds=20)).kvs
    return {
        pair.key: (pair.value, pair.mod_revision)
        for pair in pairs
        if not {b"masterleases", b"peerserverleases", b"events"} & set(pair.key.split(b"/"))
    }


@given(PATHS, st.data())
@settings(
    max_examples=4,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
def test_destroy_deletes_only_keys_of_its_tenant(api_server: Handle, paths: list[str], data: st.DataObject) -> None:
    etcd = api_server.tenants_etcd
    deleted_paths = data.draw(st.lists(st.sampled_from(paths), unique=True, max_size=3))

    async def play(client: Client, keyspace: Keyspace) -> None:
        for path in paths:
            for key in ("registry/pods/clusters/a/", "registry/clusters/b", ""):
                await client.put(f"{key_prefix(path)}{key}".encode(), path.encode())
        for beside in BESIDE:
            await client.put(beside, b"beside")
        for path in deleted_paths:
            prefix = key_prefix(path)
            pairs = await _everything(client)
            other_pairs = {key: entry for key, entry in pairs.items() if not key.startswith(prefix.encode())}
            assert other_pairs.keys() >= BESIDE
            await keyspace.claim(prefix, owner=OWNER, known=True)
            assert await keyspace.delete_prefix(prefix, owner=OWNER) == len(pairs) - len(other_pairs) >= 3
            assert await _everything(client) == other_pairs
        for path in set(paths) - set(deleted_paths):
            await client.delete_prefix(key_prefix(path))

    async def run() -> None:
        keyspace = Keyspace(etcd.endpoint, credentials=etcd.credentials)
        async with etcd.client() as client:
            await play(client, keyspace)
        await keyspace.close()

    asyncio.run(run())
