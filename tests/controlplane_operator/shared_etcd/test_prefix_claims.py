"""Writes to the shared etcd when the data of a control plane are destroyed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kplane.api import ControlPlane
from kplane.api.names import DESTROY_DATA_ANNOTATION
from kplane.controlplane_operator.backends.prefix_claims import PrefixClaims
from kplane.data import Owner

PREFIX = "/clusters/acme/"


class Keyspace:
    """Fake for a single prefix: holds the number of keys, the owner, and the changing calls."""

    def __init__(self, *, keys: int = 0, owner: Owner | None = None) -> None:
        self.keys, self.named = keys, owner
        self.changes: list[str] = []

    async def owner(self, prefix: str) -> Owner | None:
        return self.named

    async def count(self, prefix: str) -> int:
        return self.keys

    async def claim(self, prefix: str, *, owner: Owner, known: bool) -> None:
        self.changes.append("claim")
        self.named = owner

    async def take_over(self, prefix: str, *, former: Owner | None, owner: Owner) -> None:
        self.changes.append("take over")
        self.named = owner

    async def delete_prefix(self, prefix: str, *, owner: Owner) -> int:
        self.changes.append("delete")
        deleted, self.keys, self.named = self.keys, 0, None
        return deleted


def claims(keyspace: Keyspace) -> PrefixClaims:
    shared: Any = SimpleNamespace(keyspace=keyspace)
    unused: Any = None
    return PrefixClaims(shared, keys=unused, access=unused)


def control_plane(**annotations: str) -> ControlPlane:
    metadata = {"name": "acme", "uid": "one", "annotations": annotations}
    return ControlPlane.model_validate({"metadata": metadata, "spec": {}})


@pytest.mark.parametrize("annotations", [{}, {DESTROY_DATA_ANNOTATION: PREFIX}], ids=["plain", "confirmed"])
async def test_repeated_destroy_writes_no_key(annotations: dict[str, str]) -> None:
    keyspace = Keyspace(keys=3, owner=Owner("one", "acme"))
    acme = control_plane(**annotations)
    assert await claims(keyspace).destroy(acme) == 3
    keyspace.changes.clear()
    assert await claims(keyspace).destroy(acme) == 0
    assert (keyspace.changes, keyspace.named) == ([], None)


async def test_confirmed_keys_without_owner_are_taken_over_and_deleted() -> None:
    keyspace = Keyspace(keys=1)
    assert await claims(keyspace).destroy(control_plane(**{DESTROY_DATA_ANNOTATION: PREFIX})) == 1
    assert keyspace.changes == ["take over", "delete"]


async def test_owner_key_without_other_keys_is_deleted() -> None:
    keyspace = Keyspace(owner=Owner("one", "acme"))
    assert await claims(keyspace).destroy(control_plane()) == 0
    assert (keyspace.changes, keyspace.named) == (["claim", "delete"], None)
