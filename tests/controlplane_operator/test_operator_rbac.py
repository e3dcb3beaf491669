"""RBAC objects of the operator: created if they are new, and applied if they exist."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kplane.controlplane_operator.grants import create_rbac
from kplane.provider import AlreadyExists, Client, Invalid
from kplane.provider.client.resources import ROLE_BINDINGS

_BODY = {"metadata": {"name": "binding", "namespace": "ns"}, "roleRef": {"name": "role"}, "subjects": []}


class Api:
    """Fake API server with or without a binding, which may refer to another role."""

    def __init__(self, *, exists: bool, other_role: bool = False) -> None:
        self.exists = exists
        self.other_role = other_role
        self.calls: list[str] = []

    async def create(self, *_: Any, **__: Any) -> None:
        self.calls.append("create")
        if self.exists:
            raise AlreadyExists(409, "AlreadyExists", "it exists")

    async def apply(self, *_: Any, **__: Any) -> None:
        self.calls.append("apply")
        if self.other_role:
            raise Invalid(422, "Invalid", "cannot change roleRef")

    async def delete(self, *_: Any, **__: Any) -> None:
        self.calls.append("delete")
        self.other_role = False


@pytest.mark.parametrize(
    ("api", "calls"),
    [
        (Api(exists=False), ["create"]),
        (Api(exists=True), ["create", "apply"]),
        (Api(exists=True, other_role=True), ["create", "apply", "delete", "apply"]),
    ],
)
async def test_create_rbac_creates_applies_or_replaces_binding(api: Api, calls: list[str]) -> None:
    await create_rbac(cast("Client", api), ROLE_BINDINGS, _BODY)
    assert api.calls == calls
