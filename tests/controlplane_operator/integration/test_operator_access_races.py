"""Grants that are changed from two sides at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from typing_extensions import override

from kplane.api import ControlPlaneRegistration, SecretReference
from kplane.controlplane_operator.grants import Access, Account
from kplane.embedded.handle import Handle
from kplane.provider import Client, ClusterConfig, Resource
from kplane.provider.client.client import ObjectList
from kplane.provider.client.resources import ROLES

pytestmark = pytest.mark.integration

_SECRET = SecretReference(name="any", namespace="default")


def access_of(client: Client) -> Access:
    return Access(client, shared=Account("kplane-system", "mcm"))


def registration(uid: str) -> ControlPlaneRegistration:
    return ControlPlaneRegistration.model_validate(
        {"metadata": {"name": "raced", "uid": uid}, "spec": {"controlPlaneRef": {"name": "raced"}}}
    )


class Meanwhile(Client):
    """A client on whose first list of roles something happens before the answer is there."""

    happens: Callable[[], Awaitable[Any]] | None = None

    @override
    async def list(self, resource: Resource, **selection: Any) -> ObjectList:
        found = await super().list(resource, **selection)
        if resource == ROLES and self.happens is not None:
            happens, self.happens = self.happens, None
            await happens()
        return found


async def test_two_may_take_back_the_same_grant_at_once(api_server: Handle) -> None:
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig)) as client:
        access = access_of(client)
        await access.grant(registration("taken-twice"), secret=_SECRET, to=access.shared)
        await asyncio.gather(access.revoke("taken-twice"), access.revoke("taken-twice"))
        assert access.holders() == set()


async def test_loading_forgets_no_grant_and_revives_none(api_server: Handle) -> None:
    async with Meanwhile(ClusterConfig.load(api_server.admin_kubeconfig)) as client:
        access = access_of(client)
        await access.grant(registration("taken"), secret=_SECRET, to=access.shared)

        async def change() -> None:
            await access.grant(registration("given"), secret=_SECRET, to=access.shared)
            await access.revoke("taken")

        client.happens = change
        await access.load()
        assert access.holders() == {"given"}
        await access.revoke("given")
