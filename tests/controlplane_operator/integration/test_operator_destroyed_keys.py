"""Destroying the keys of one tenant on a real shared etcd, among any neighbours."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kplane.controlplane_operator.shared_etcd.keyspace import Keyspace, key_prefix
from kplane.embedded.handle import Handle

pytestmark = pytest.mark.integration

PATHS = st.lists(
    st.from_regex(r"[ab](-?[ab0]){0,2}", fullmatch=True) | st.sampled_from(["clusters", "root", "registry"]),
    min_size=2,
    max_size=5,
    unique=True,
)


def _stays(key: str) -> bool:
    """Tell whether a key is none of those with a lease, which go by themselves where a former test kept data."""
    return not {"masterleases", "peerserverleases", "events"} & set(key.split("/"))


@given(PATHS, st.data())
@settings(
    max_examples=4,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
def test_what_a_destroy_deletes_is_its_own_and_nothing_else(
    api_server: Handle, paths: list[str], data: st.DataObject
) -> None:
    etcdctl, directory = api_server.tenants_etcd, api_server.tenants_etcd_credentials
    keyspace = Keyspace(etcdctl=etcdctl.program, endpoints=(etcdctl.endpoint,), credentials=directory)
    gone = data.draw(st.lists(st.sampled_from(paths), unique=True, max_size=3))

    async def play() -> None:
        for path in paths:
            for key in ("registry/pods/clusters/a/", "registry/clusters/b", ""):
                await etcdctl.run("put", f"{key_prefix(path)}{key}", path)
        await etcdctl.run("put", "/clusters", "beside")
        for path in gone:
            prefix = key_prefix(path)
            everything = await etcdctl.digests("", of_interest=_stays)
            others = {key: digest for key, digest in everything.items() if not key.startswith(prefix)}
            assert await keyspace.delete_prefix(prefix) == len(everything) - len(others) >= 3
            assert await etcdctl.digests("", of_interest=_stays) == others
        for path in set(paths) - set(gone):
            await keyspace.delete_prefix(key_prefix(path))

    asyncio.run(play())
