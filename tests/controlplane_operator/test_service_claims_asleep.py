"""Service claims while the control plane sleeps or moves: a registration that was refused stays refused."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.grants import Access
from kplane.controlplane_operator.registrations.dedicated_mcm import DedicatedMcms
from kplane.controlplane_operator.registrations.endpoint_switch import EndpointSwitch
from kplane.controlplane_operator.registrations.reconciler import ControlPlaneRegistrationReconciler
from kplane.controlplane_operator.secret_access import SecretAccess
from kplane.controlplane_operator.status.events import Events
from kplane.controlplane_operator.status.writer import StatusWriter
from kplane.controlplane_operator.watch.stores import Stores
from kplane.controlplane_operator.watch.triggers import Triggers
from kplane.provider import Client, NotFound

_CREATED = "2026-01-01T00:00:00Z"
_SECRET = {"name": "controlplane-cp-kubeconfig", "namespace": "kplane-cp-cp"}
_PUBLISHED: dict[str, Any] = {"endpoint": "https://cp.example", "kubeconfigSecretRef": _SECRET}
_SLEEP = {"since": _CREATED, "reason": "Idle", "observedGeneration": 1}
_MIGRATION = {
    "step": "EndingControllers",
    "from": {"mode": "Virtual"},
    "to": {"mode": "Dedicated", "slot": 1},
}
_versions = itertools.count(100)


class Api:
    """Fake API server: accepts writes of registrations, and of all that grants need."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores

    async def apply(self, resource: Any, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        if resource.plural != "controlplaneregistrations":
            return body
        stored = self.stores.registrations.get(("", body["metadata"]["name"])) or {}
        answer = {**stored, "metadata": self._changed(stored), "status": body["status"]}
        self.stores.registrations.apply(answer)
        return answer

    async def patch(self, _: Any, name: str, body: dict[str, Any], **__: Any) -> dict[str, Any]:
        stored = self.stores.registrations.get(("", name)) or {}
        answer = {**stored, "metadata": self._changed(stored) | {"finalizers": body["metadata"]["finalizers"]}}
        self.stores.registrations.apply(answer)
        return answer

    async def create(self, _: Any, body: dict[str, Any]) -> dict[str, Any]:
        return body

    async def delete(self, *_: Any, **__: Any) -> None:
        raise NotFound(404, "NotFound", "not found")

    async def list(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(items=[])

    @staticmethod
    def _changed(stored: Any) -> dict[str, Any]:
        return {**stored["metadata"], "resourceVersion": str(next(_versions))}


class World:
    """A control plane, and the reconciler of its registrations."""

    def __init__(self) -> None:
        self.stores, triggers = Stores(), Triggers()
        client = cast("Client", Api(self.stores))
        events = Events(client)
        context = OperatorContext(
            client=client,
            stores=self.stores,
            triggers=triggers,
            status=StatusWriter(client, events=events),
            events=events,
            access=AsyncMock(Access, shared=None),
            secrets=cast("SecretAccess", None),
        )
        self.reconciler = ControlPlaneRegistrationReconciler(
            context,
            switch=EndpointSwitch(self.stores, triggers=triggers),
            mcms=cast("DedicatedMcms", SimpleNamespace(at=lambda _: [])),
            no_dedicated=None,
        )

    def publish(self, **status: Any) -> None:
        self.stores.control_planes.apply(
            {"metadata": _metadata("cp", uid="uid-cp"), "spec": {}, "status": _PUBLISHED | status}
        )

    def register(self, name: str) -> None:
        spec = {"controlPlaneRef": {"name": "cp"}, "services": ["Controllers"]}
        self.stores.registrations.apply({"metadata": _metadata(name, uid=f"uid-{name}"), "spec": spec})

    def drop(self, name: str) -> None:
        self.stores.registrations.remove({"metadata": _metadata(name, uid=f"uid-{name}"), "spec": {}})

    async def reasons(self, *names: str) -> list[str]:
        """Reconcile registrations in this order, and return the reasons of their condition Ready."""
        reasons = []
        for name in names:
            await self.reconciler.reconcile(("", name))
            status = (self.stores.registrations.get(("", name)) or {})["status"]
            reasons += [condition["reason"] for condition in status["conditions"] if condition["type"] == "Ready"]
        return reasons


def _metadata(name: str, *, uid: str) -> dict[str, Any]:
    version = str(next(_versions))
    return {"name": name, "uid": uid, "generation": 1, "resourceVersion": version, "creationTimestamp": _CREATED}


@pytest.fixture
async def world() -> World:
    """Registration "second" is served, and "first" of the same second, which has the lower uid, is refused."""
    world = World()
    world.publish()
    world.register("second")
    assert await world.reasons("second") == ["Resolved"]
    world.register("first")
    assert await world.reasons("first") == ["ServiceTaken"]
    return world


@pytest.mark.parametrize(
    ("obstacle", "reason"),
    [({"hibernation": _SLEEP}, "Hibernated"), ({"migration": _MIGRATION}, "Migrating")],
    ids=["sleep", "migration"],
)
@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
async def test_served_registration_keeps_service_over_sleep_or_move(
    world: World, obstacle: dict[str, Any], reason: str, order: tuple[str, str]
) -> None:
    for _ in range(2):
        world.publish(**obstacle)
        for _ in range(2):
            reasons = dict(zip(order, await world.reasons(*order), strict=True))
            assert reasons == {"first": "ServiceTaken", "second": reason}
        world.publish()
        reasons = dict(zip(order, await world.reasons(*order), strict=True))
        assert reasons == {"first": "ServiceTaken", "second": "Resolved"}


async def test_refused_registration_gets_service_after_holder_is_deleted_asleep(world: World) -> None:
    world.publish(hibernation=_SLEEP)
    assert await world.reasons("second", "first") == ["Hibernated", "ServiceTaken"]
    world.drop("second")
    assert await world.reasons("first") == ["Hibernated"]
    world.publish()
    assert await world.reasons("first") == ["Resolved"]
