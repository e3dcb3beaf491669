"""Forbidden requests in a namespace that is being deleted, because its RoleBinding may be deleted first."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kplane.provider import Client, NotFound
from kplane.provider.errors import Forbidden
from kplane.workloads.pods import unless_leaving


class Cluster:
    """A client that returns a namespace, or raises NotFound if the namespace is None."""

    def __init__(self, namespace: dict[str, Any] | None) -> None:
        self.namespace = namespace

    async def get(self, *_: Any) -> dict[str, Any]:
        if self.namespace is None:
            raise NotFound(404, "NotFound", "it is gone")
        return self.namespace


async def removed_from(namespace: dict[str, Any] | None) -> None:
    async with unless_leaving(cast("Client", Cluster(namespace)), "kplane-cp-acme"):
        raise Forbidden(403, "Forbidden", "the RoleBinding went first")


async def test_forbidden_is_ignored_in_a_deleted_namespace() -> None:
    await removed_from(None)
    await removed_from({"metadata": {"name": "kplane-cp-acme", "deletionTimestamp": "2026-01-01T00:00:00Z"}})


async def test_forbidden_is_raised_in_an_active_namespace() -> None:
    with pytest.raises(Forbidden):
        await removed_from({"metadata": {"name": "kplane-cp-acme"}})
