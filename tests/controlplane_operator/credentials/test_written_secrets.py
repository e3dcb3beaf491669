"""Secrets of a control plane: the latest entries of the operator, and entries that users added."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from typing_extensions import override

from kplane.api import ControlPlane
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.credentials.secrets import write_secret
from kplane.controlplane_operator.grants import Access, Account
from kplane.controlplane_operator.kinds import CONTROL_PLANES, owner_reference
from kplane.controlplane_operator.secret_access import SecretAccess
from kplane.controlplane_operator.status.events import Events
from kplane.controlplane_operator.status.writer import StatusWriter
from kplane.controlplane_operator.watch.stores import Stores
from kplane.controlplane_operator.watch.triggers import Triggers
from kplane.embedded.handle import Handle
from kplane.pki.entries import data_of
from kplane.provider import Cache, Client, ClusterConfig
from kplane.provider.client.resources import NAMESPACES, SECRETS

pytestmark = pytest.mark.integration

NAMES = ("written", "written-before")


class Counting(Client):
    """Records the methods of its requests."""

    asked: list[str]

    @override
    async def _request(self, method: str, *args: Any, **options: Any) -> Any:
        self.asked.append(method)
        return await super()._request(method, *args, **options)


@dataclass(frozen=True)
class World:
    context: OperatorContext
    client: Counting
    namespace: str
    owner: ControlPlane
    former: ControlPlane
    """Former owner of the Secret. Its name does not matter, but garbage collection requires that it exists."""

    async def write(self, data: dict[str, bytes], *, of: ControlPlane | None = None, **annotations: str) -> None:
        owner = of or self.owner
        place = {"name": "one", "namespace": self.namespace}
        await write_secret(self.context, owner, data=data, annotations=annotations, **place)

    async def stored(self) -> dict[str, Any]:
        return await self.client.get(SECRETS, "one", namespace=self.namespace)


@pytest.fixture
async def world(api_server: Handle, unguarded: None, namespaces_go_at_once: Any) -> AsyncIterator[World]:
    namespace = f"kplane-cp-written-{secrets.token_hex(4)}"
    config = ClusterConfig.load(api_server.admin_kubeconfig)
    async with namespaces_go_at_once(config), Counting(config, field_manager="kplane") as client:
        client.asked = []
        await client.apply(NAMESPACES, {"metadata": {"name": namespace}}, force=True)
        control_planes = [
            await client.create(CONTROL_PLANES, {"metadata": {"name": name}, "spec": {}}) for name in NAMES
        ]
        stores, events = Stores(), Events(client)
        context = OperatorContext(
            client=client,
            stores=stores,
            triggers=Triggers(),
            status=StatusWriter(client, events=events),
            events=events,
            access=Access(client, Cache(client), shared=Account("kplane-system", "mcm")),
            secrets=SecretAccess(client, stores=stores, namespace="kplane-system"),
        )
        yield World(context, client, namespace, *map(ControlPlane.model_validate, control_planes))
        for name in NAMES:
            await client.delete(CONTROL_PLANES, name)
        await client.delete(NAMESPACES, namespace)


@pytest.mark.parametrize("first", ["created", "applied"])
async def test_write_removes_former_entries_and_keeps_those_of_users(world: World, first: str) -> None:
    data, notes = {"server": b"a", "ca.crt": b"b"}, {"expires": "soon", "lifetime": "1h"}
    if first == "created":
        await world.write(data, of=world.former, **notes)
    else:
        # An earlier version of the operator applied the Secret.
        owned = {"annotations": notes, "ownerReferences": [owner_reference(world.former)]}
        body = {"data": {"server": "YQ==", "ca.crt": "Yg=="}, "type": "Opaque"}
        await world.client.apply(
            SECRETS, {"metadata": {"name": "one", "namespace": world.namespace, **owned}, **body}, force=True
        )
    added = {"metadata": {"annotations": {"users": "own"}}, "data": {"users": "b3du"}}
    async with Client(world.client.config, field_manager="kubectl-edit") as user:
        await user.patch(SECRETS, "one", added, namespace=world.namespace)

    await world.write({"server": b"c"}, expires="late")
    secret = await world.stored()
    assert data_of(secret) == {"server": b"c", "users": b"own"}
    assert secret["metadata"]["annotations"] == {"expires": "late", "users": "own"}
    assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [world.owner.metadata.uid]


async def test_new_secret_takes_one_request_and_unchanged_secret_none(world: World) -> None:
    world.client.asked.clear()
    for _ in range(2):
        await world.write({"server": b"a"})
    assert world.client.asked == ["POST"]


@pytest.mark.parametrize(
    "odd", [{}, {"immutable": True}, {"type": "example.com/odd"}], ids=["usual", "immutable", "type"]
)
async def test_existing_secret_missing_in_cache_is_overwritten(world: World, odd: dict[str, Any]) -> None:
    metadata = {"name": "one", "namespace": world.namespace}
    await world.client.create(SECRETS, {"metadata": metadata, "data": {"server": "YQ=="}, **odd})
    await world.write({"server": b"c"})
    secret = await world.stored()
    assert (data_of(secret), secret["type"], secret.get("immutable")) == ({"server": b"c"}, "Opaque", None)


async def test_secret_deleted_since_last_write_is_created_again(world: World) -> None:
    await world.write({"server": b"a"})
    # The cache observes the writes of the operator's client, and no others.
    async with Client(world.client.config, field_manager="kubectl-edit") as user:
        await user.delete(SECRETS, "one", namespace=world.namespace)
    await world.write({"server": b"c"})
    assert data_of(await world.stored()) == {"server": b"c"}
