"""A registration waits for a former registration's mcm: the end enqueues the waiter, and the wait is no failure."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kplane.components.mcm import McmProgram
from kplane.components.names import mcm_name
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.watches import control_planes_of_component
from kplane.controlplane_operator.gc import ComponentCollector
from kplane.controlplane_operator.grants import Access, Account
from kplane.controlplane_operator.registrations.dedicated_mcm import DedicatedMcmReconciler, DedicatedMcms
from kplane.controlplane_operator.registrations.endpoint_switch import EndpointSwitch
from kplane.controlplane_operator.registrations.identities import McmIdentities
from kplane.controlplane_operator.registrations.reconciler import ControlPlaneRegistrationReconciler
from kplane.controlplane_operator.secret_access import SecretAccess
from kplane.controlplane_operator.status.events import Events
from kplane.controlplane_operator.status.writer import StatusWriter
from kplane.controlplane_operator.watch.cache import UIDTracker
from kplane.controlplane_operator.watch.stores import Stores
from kplane.controlplane_operator.watch.triggers import Triggers
from kplane.provider import Client, NotFound
from kplane.provider.aio.backoff import Backoff
from kplane.provider.client.resources import NAMESPACES
from kplane.provider.testing import FakeCluster
from kplane.workloads import Runtime, RuntimeFailure

from .watched import taken

FORMER = mcm_name("cp", uid="first")
_versions = itertools.count(100)


class Api:
    """Fake API server: accepts writes, and has no objects."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores

    async def apply(self, resource: Any, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        if resource.plural != "controlplaneregistrations":
            return body
        stored = self.stores.registrations.get(("", body["metadata"]["name"])) or {}
        metadata = {**stored["metadata"], "resourceVersion": str(next(_versions))}
        answer = {**stored, "metadata": metadata, "status": body["status"]}
        self.stores.registrations.apply(answer)
        return answer

    async def create(self, _: Any, body: dict[str, Any]) -> dict[str, Any]:
        return body

    async def delete(self, *_: Any, **__: Any) -> None:
        raise NotFound(404, "NotFound", "not found")

    async def list(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(items=[])


class Programs:
    """Fake runtime with the mcm of the former registration, whose pod stops late."""

    def __init__(self) -> None:
        self.present = [FORMER]
        self.ended = False
        self.tries = 0

    def names(self, *, prefix: str = "") -> list[str]:
        return [name for name in self.present if name.startswith(prefix)]

    async def synced(self) -> None:
        return

    async def stop(self, name: str) -> None:
        self.tries += 1
        if not self.ended:
            raise RuntimeFailure(f"{name} has not ended yet")

    async def delete(self, name: str) -> None:
        self.present.remove(name)


class World:
    """A published control plane, and both reconcilers of its registrations."""

    def __init__(self) -> None:
        self.stores, self.triggers, self.programs = Stores(), Triggers(), Programs()
        client, runtime = cast("Client", Api(self.stores)), cast("Runtime", self.programs)
        self.rights = rights = FakeCluster("management")
        identities = McmIdentities(rights.client, rights.cache)
        self.mcms = DedicatedMcms(runtime, identities=identities)
        self.orphans = ComponentCollector(client, runtime=runtime, mcms=self.mcms)
        events = Events(client)
        self.context = OperatorContext(
            client=client,
            stores=self.stores,
            triggers=self.triggers,
            status=StatusWriter(client, events=events),
            events=events,
            access=Access(rights.client, rights.cache, shared=Account("kplane-system", "mcm")),
            secrets=cast("SecretAccess", None),
        )
        self.registrations = ControlPlaneRegistrationReconciler(
            self.context, switch=EndpointSwitch(self.stores, triggers=self.triggers), mcms=self.mcms, no_dedicated=None
        )
        self.dedicated = DedicatedMcmReconciler(
            self.context,
            runtime=runtime,
            mcms=self.mcms,
            identities=identities,
            program=McmProgram(program="mcm", directories=()),
            config=None,
        )
        secret = {"name": "controlplane-cp-kubeconfig", "namespace": "kplane-cp-cp"}
        status = {"endpoint": "https://cp.example", "kubeconfigSecretRef": secret}
        self.stores.control_planes.apply({"metadata": metadata("cp", uid="uid-cp"), "spec": {}, "status": status})

    def put(self, name: str, *, uid: str) -> None:
        spec = {"controlPlaneRef": {"name": "cp"}, "mode": "Shared"}
        self.stores.registrations.apply({"metadata": metadata(name, uid=uid), "spec": spec})

    def drop(self, name: str, *, uid: str) -> None:
        self.stores.registrations.remove({"metadata": metadata(name, uid=uid), "spec": {}})

    def reason(self, name: str) -> str:
        obj = self.stores.registrations.get(("", name)) or {}
        return next(
            (condition["reason"] for condition in obj["status"]["conditions"] if condition["type"] == "Ready"), ""
        )

    def failures(self) -> dict[str, float]:
        samples = [sample for metric in self.context.metrics.registry.collect() for sample in metric.samples]
        return {
            sample.labels["reason"]: sample.value
            for sample in samples
            if sample.name == "kplane_reconcile_failures_total"
        }


def metadata(name: str, *, uid: str) -> dict[str, Any]:
    return {"name": name, "uid": uid, "generation": 1, "resourceVersion": str(next(_versions))}


@pytest.mark.parametrize("name", ["again", "other"])
async def test_end_of_former_mcm_enqueues_mcm_and_waiting_registration(name: str) -> None:
    world = World()
    world.put("again", uid="first")
    await world.dedicated.reconcile(("", "again"))
    world.drop("again", uid="first")
    world.put(name, uid="second")
    assert await world.dedicated.reconcile(("", "again")) is not None
    await world.registrations.reconcile(("", name))
    assert world.reason(name) == "McmEnding"
    for trigger in (world.triggers.mcms, world.triggers.registrations):
        taken(trigger)

    # The pod of the former mcm stops.
    world.programs.ended = True
    world.dedicated.wake(FORMER)
    assert taken(world.triggers.mcms) == {"again"}
    await world.dedicated.reconcile(("", "again"))
    assert world.programs.names() == []
    # The last object of the former mcm is deleted.
    world.dedicated.wake(FORMER)
    assert name in taken(world.triggers.registrations)
    await world.rights.client.create(NAMESPACES, {"metadata": {"name": "kplane-cp-cp"}})
    await world.registrations.reconcile(("", name))
    assert world.reason(name) == "Resolved"


def test_end_of_mcm_enqueues_control_plane_that_is_being_deleted() -> None:
    stores = Stores()
    stores.control_planes.apply({"metadata": metadata("cp", uid="uid-cp"), "spec": {}})
    assert list(control_planes_of_component(FORMER, stores=stores)) == []
    ending = metadata("cp", uid="uid-cp") | {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    stores.control_planes.apply({"metadata": ending, "spec": {}})
    assert list(control_planes_of_component(FORMER, stores=stores)) == ["cp"]


async def test_wait_for_end_of_mcm_counts_no_failure() -> None:
    world = World()
    world.put("again", uid="second")
    await world.registrations.reconcile(("", "again"))
    assert world.reason("again") == "McmEnding"
    assert world.failures() == {}
    # A missing control plane is counted as a failure.
    world.stores.control_planes.remove({"metadata": metadata("cp", uid="uid-cp")})
    await world.registrations.reconcile(("", "again"))
    assert world.failures() == {"ControlPlaneNotFound": 1.0}


async def test_collector_retries_orphaned_mcm_with_backoff(eventually: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "next_delay", lambda *_: 0.01)
    world = World()
    task = asyncio.create_task(world.orphans.run())
    try:
        await eventually(lambda: world.programs.tries, lambda tries: tries > 0)
        world.programs.ended = True
        await eventually(world.programs.names, lambda names: names == [])
    finally:
        task.cancel()


def test_uid_tracker_returns_former_uid_until_it_is_succeeded() -> None:
    tracker, key = UIDTracker(), ("", "acme")
    assert tracker.former(key, uid="first") is None
    tracker.succeed(key, uid="first")
    assert tracker.former(key, uid="first") is None
    for _ in range(2):
        assert (tracker.former(key, uid="second"), tracker.former(key, uid=None)) == ("first", "first")
    assert tracker.of(lambda uid: uid == "first") == [key]
    tracker.succeed(key, uid=None)
    assert tracker.former(key, uid="second") is None
    assert tracker.of(lambda _: True) == []
