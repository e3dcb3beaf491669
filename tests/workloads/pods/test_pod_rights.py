"""Rights that go with their namespace, before what they were for."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kplane.provider import Client, NotFound
from kplane.provider.errors import Forbidden
from kplane.workloads.pods import unless_leaving


class Cluster:
    """Knows one namespace, or none."""

    def __init__(self, namespace: dict[str, Any] | None) -> None:
        self.namespace = namespace

    async def get(self, *_: Any) -> dict[str, Any]:
        if self.namespace is None:
            raise NotFound(404, "NotFound", "it is gone")
        return self.namespace


async def removed_from(namespace: dict[str, Any] | None) -> None:
    async with unless_leaving(cast("Client", Cluster(namespace)), "kplane-cp-acme"):
        raise Forbidden(403, "Forbidden", "the RoleBinding went first")


async def test_a_refusal_in_a_namespace_that_leaves_is_no_failure() -> None:
    await removed_from(None)
    await removed_from({"metadata": {"name": "kplane-cp-acme", "deletionTimestamp": "2026-01-01T00:00:00Z"}})


async def test_a_refusal_in_a_namespace_that_stays_is_one() -> None:
    with pytest.raises(Forbidden):
        await removed_from({"metadata": {"name": "kplane-cp-acme"}})
