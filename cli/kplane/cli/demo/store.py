"""Keys of a control plane in the shared etcd."""

from __future__ import annotations

from collections.abc import Mapping

from kplane.embedded.etcd import TenantsEtcd

__all__ = ["count_keys", "difference", "prefix", "stored"]

_MOVING = frozenset({"events", "leases", "masterleases", "peerserverleases"})
"""Kinds of keys that the API server itself adds, renews and expires."""


def prefix(cluster_path: str) -> str:
    """Return the key prefix of a virtual control plane."""
    return f"/clusters/{cluster_path}/"


async def count_keys(etcd: TenantsEtcd, cluster_path: str) -> int:
    """Return the number of keys of a control plane."""
    return await etcd.count(prefix(cluster_path))


async def stored(etcd: TenantsEtcd, cluster_path: str) -> Mapping[str, str]:
    """Return a digest of value and modification revision for each key of a control plane, without `_MOVING` kinds."""
    start = prefix(cluster_path)
    return await etcd.digests(start, of_interest=lambda key: key.removeprefix(start).split("/", 1)[0] not in _MOVING)


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the keys that were added, removed or written."""
    return sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
