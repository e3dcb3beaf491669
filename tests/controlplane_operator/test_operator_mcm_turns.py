"""The mcm of a registration on a fake runtime, which produces any order of events and slow stops on demand."""

from __future__ import annotations

import copy
import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kplane.api.names import PAUSED_ANNOTATION
from kplane.components.mcm import McmProgram
from kplane.components.names import mcm_mark, mcm_name
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.gc import ComponentCollector
from kplane.controlplane_operator.metrics import Metrics
from kplane.controlplane_operator.registrations.dedicated_mcm import DedicatedMcmReconciler, DedicatedMcms, eldest_of
from kplane.controlplane_operator.registrations.identities import McmIdentities
from kplane.controlplane_operator.status.events import Events
from kplane.controlplane_operator.status.writer import StatusWriter
from kplane.controlplane_operator.watch.cache import Key
from kplane.controlplane_operator.watch.stores import Stores
from kplane.controlplane_operator.watch.triggers import Triggers
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import NAMESPACES
from kplane.provider.testing import FakeCluster
from kplane.workloads import Phase, Runtime, RuntimeFailure

from .watched import Watched

KEY: Key = ("", "foo")
_versions = itertools.count(100)


class Api:
    """Fake API server: stores registrations, and discards all other objects."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self.registrations: dict[str, dict[str, Any]] = {}
        self.written = 0
        self.deleted: list[str] = []

    async def apply(self, resource: Any, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        conditions = body["status"]["conditions"]
        stored = self.registrations[body["metadata"]["name"]]["status"].get("conditions", [])
        return self._stored(
            body,
            {"conditions": [item for item in stored if item["type"] != "DedicatedReady"] + conditions},
        )

    async def patch(self, _: Any, name: str, body: dict[str, Any], **__: Any) -> dict[str, Any]:
        return self._stored({"metadata": {"name": name}}, body["status"])

    def _stored(self, body: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
        self.written += 1
        stored = copy.deepcopy(self.registrations[body["metadata"]["name"]])
        stored["status"] = {name: value for name, value in (stored["status"] | status).items() if value is not None}
        stored["metadata"]["resourceVersion"] = str(next(_versions))
        self.registrations[stored["metadata"]["name"]] = stored
        self.stores.registrations.apply(copy.deepcopy(stored))
        return copy.deepcopy(stored)

    async def delete(self, resource: Any, name: str, **_: Any) -> None:
        self.deleted.append(f"{resource.plural}/{name}")

    async def list(self, resource: Any, **_: Any) -> Any:
        ours = resource.plural == "controlplaneregistrations"
        return SimpleNamespace(items=list(self.registrations.values()) if ours else [])


class Programs:
    """Fake runtime: components are ready at once, and do not stop while `lasts` is true."""

    def __init__(self) -> None:
        self.present: dict[str, Any] = {}
        self.applied: list[str] = []
        self.lasts = False

    def names(self, *, prefix: str = "") -> list[str]:
        return sorted(name for name in self.present if name.startswith(prefix))

    def state(self, _: str) -> Any:
        return SimpleNamespace(phase=Phase.READY, message="", unplaced=False, unobtainable=False)

    def settled(self, _: str) -> bool:
        return True

    def placed(self, _: str, scheduling: object) -> bool:
        return True

    async def stop(self, name: str) -> None:
        if self.lasts:
            raise RuntimeFailure(f"it has not ended in namespace x yet; pods: {name}-0")

    async def delete(self, name: str) -> None:
        self.present.pop(name, None)

    async def reserve(self, name: str, **_: Any) -> Any:
        self.present.setdefault(name, None)
        return SimpleNamespace(ports={"http": 8081}, listen="0.0.0.0")

    async def apply(self, component: Any) -> None:
        self.present[component.name] = component
        self.applied.append(component.name)


class Said:
    """Records Events."""

    def __init__(self) -> None:
        self.reasons: list[tuple[str, bool]] = []

    def record(self, _: Any, *, reason: str, message: str, warning: bool = False) -> None:
        self.reasons.append((reason, warning))


class World:
    """Two control planes, and the reconciler of mcm for registrations."""

    def __init__(self, *, config: ClusterConfig | None = None) -> None:
        self.stores, self.triggers, self.metrics = Stores(), Triggers(), Metrics()
        self.api, self.programs, self.said = Api(self.stores), Programs(), Said()
        client, runtime = cast("Client", self.api), cast("Runtime", self.programs)
        self.rights = FakeCluster("management")
        self.identities = McmIdentities(self.rights.client, self.rights.cache)
        self.mcms = DedicatedMcms(runtime, identities=self.identities)
        self.orphans = ComponentCollector(client, runtime=runtime, mcms=self.mcms)
        context = SimpleNamespace(
            client=client,
            stores=self.stores,
            status=StatusWriter(client, events=cast("Events", self.said)),
            metrics=self.metrics,
        )
        self.reconciler = DedicatedMcmReconciler(
            cast("OperatorContext", context),
            runtime=runtime,
            mcms=self.mcms,
            identities=self.identities,
            program=McmProgram(program="mcm", directories=()),
            config=config,
        )
        for name in ("cp", "other"):
            self.stores.control_planes.apply(control_plane(name))

    @classmethod
    async def begin(cls, *, config: ClusterConfig | None = None) -> World:
        """Return a world with the namespaces in which the rights of the mcm are."""
        world = cls(config=config)
        for name in ("kplane-cp-cp", "kplane-cp-other"):
            await world.rights.client.create(NAMESPACES, {"metadata": {"name": name}})
        return world

    def put(self, name: str, *, uid: str, mode: str, of: str = "cp", made: str = "", **status: Any) -> None:
        existing = self.api.registrations.get(name, {})
        same = existing and existing["metadata"]["uid"] == uid
        former_status = existing.get("status", {}) if same else {}
        metadata = {"name": name, "uid": uid, "generation": 1, "resourceVersion": str(next(_versions))}
        obj = {
            "metadata": metadata | ({"creationTimestamp": made} if made else {}),
            "spec": {"controlPlaneRef": {"name": of}, "mode": mode},
            "status": former_status | {"ready": True, "mode": mode, "controlPlaneUID": f"uid-{of}"} | status,
        }
        self.api.registrations[name] = obj
        self.stores.registrations.apply(copy.deepcopy(obj))

    def drop(self, name: str) -> None:
        registration = self.api.registrations.pop(name)
        self.stores.registrations.remove(
            {**registration, "metadata": {**registration["metadata"], "resourceVersion": "999999"}}
        )

    def reason(self) -> str:
        conditions = self.api.registrations["foo"]["status"].get("conditions", [])
        return next((condition["reason"] for condition in conditions if condition["type"] == "DedicatedReady"), "")


def control_plane(name: str, **metadata: Any) -> dict[str, Any]:
    fixed = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(next(_versions))}
    return {"metadata": {**fixed, **metadata}, "spec": {}}


async def test_recreated_registration_loses_mcm_of_former_uid() -> None:
    world = await World.begin()
    world.put("foo", uid="first", mode="Dedicated")
    await world.reconciler.reconcile(KEY)
    assert world.programs.names() == [mcm_name("cp", uid="first")]
    # The deletion and the creation come before the reconcile.
    world.put("foo", uid="second", mode="Shared")
    await world.reconciler.reconcile(KEY)
    assert world.programs.names() == []
    assert await world.identities.holders() == set()

    # Only the running program still shows that this mcm exists.
    world.programs.present[mcm_name("cp", uid="second")] = None
    await world.reconciler.reconcile(KEY)
    assert world.programs.names() == []

    # A new operator has no memory of the former registration.
    world.programs.present[mcm_name("cp", uid="first")] = None
    await world.orphans.collect()
    assert world.programs.names() == []


async def test_slow_stop_posts_one_event_without_warning() -> None:
    world = await World.begin()
    watched = Watched(world.stores)
    world.put("foo", uid="first", mode="Dedicated")
    await world.reconciler.reconcile(KEY)
    world.programs.lasts = True
    world.put("foo", uid="first", mode="Shared")
    watched.woken()
    world.said.reasons.clear()
    world.api.written = 0
    for _ in range(3):
        result = await world.reconciler.reconcile(KEY)
        assert result is not None
        assert world.reason() == "McmEnding"
    assert world.said.reasons == [("McmEnding", False)]
    # The first write reports the start of the stop, the second write the pods that are left.
    assert world.api.written == 2
    assert watched.names("dedicatedmcm") == set()
    message = world.api.registrations["foo"]["status"]["conditions"][0]["message"]
    assert "pods: mcm" in message
    world.programs.lasts = False
    assert await world.reconciler.reconcile(KEY) is None
    assert world.reason() == ""


async def test_slow_stop_is_awaited_after_rights_are_revoked() -> None:
    world = await World.begin()
    world.put("foo", uid="first", mode="Dedicated")
    await world.reconciler.reconcile(KEY)
    world.programs.lasts = True
    world.drop("foo")
    assert await world.reconciler.reconcile(KEY) is not None
    await world.identities.revoke("first")
    world.programs.lasts = False
    assert await world.reconciler.reconcile(KEY) is None
    assert world.programs.names() == []


async def test_no_mcm_is_started_for_control_plane_being_deleted() -> None:
    world = await World.begin()
    world.put("foo", uid="first", mode="Dedicated")
    await world.reconciler.reconcile(KEY)
    world.programs.applied.clear()
    world.stores.control_planes.apply(control_plane("cp", deletionTimestamp="2026-01-01T00:00:00Z"))
    instance = {"controlPlaneUID": "uid-cp", "mode": "Dedicated"}
    world.put("foo", uid="first", mode="Dedicated", ready=False, instance=instance)
    world.programs.lasts = True
    for _ in range(3):
        await world.reconciler.reconcile(KEY)
    # The operator removes `instance` only after the mcm has stopped.
    assert "instance" in world.api.registrations["foo"]["status"]
    world.programs.lasts = False
    assert await world.reconciler.reconcile(KEY) is None
    assert (world.programs.applied, world.programs.names()) == ([], [])
    assert "instance" not in world.api.registrations["foo"]["status"]


async def test_mcm_is_stopped_while_control_plane_sleeps() -> None:
    world = await World.begin()
    world.put("foo", uid="first", mode="Dedicated")
    await world.reconciler.reconcile(KEY)
    instance = {"controlPlaneUID": "uid-cp", "mode": "Dedicated"}
    world.put("foo", uid="first", mode="Dedicated", ready=False, instance=instance)
    # A registration that is not ready for another reason keeps its mcm.
    await world.reconciler.reconcile(KEY)
    assert world.programs.names() == [mcm_name("cp", uid="first")]
    sleep = {"hibernation": {"since": "2026-01-01T00:00:00Z", "reason": "Idle"}}
    world.stores.control_planes.apply(control_plane("cp") | {"status": sleep})
    assert await world.reconciler.reconcile(KEY) is None
    assert world.programs.names() == []
    assert "instance" not in world.api.registrations["foo"]["status"]
    world.stores.control_planes.apply(control_plane("cp"))
    world.put("foo", uid="first", mode="Dedicated", ready=True)
    await world.reconciler.reconcile(KEY)
    assert world.programs.names() == [mcm_name("cp", uid="first")]


async def test_wait_for_shared_mcm_is_reported_without_warning() -> None:
    world = await World.begin()
    world.put("foo", uid="first", mode="Dedicated", instance={"controlPlaneUID": "uid-cp"})
    await world.reconciler.reconcile(KEY)
    assert world.reason() == "WaitingForShared"
    assert all(not warning for _, warning in world.said.reasons)
    world.put("foo", uid="first", mode="Dedicated", instance={"controlPlaneUID": "uid-cp", "mode": "Dedicated"})
    await world.reconciler.reconcile(KEY)
    assert world.reason() == "McmRunning"


def same_mark() -> tuple[str, str]:
    seen: dict[str, str] = {}
    for number in itertools.count():
        uid = f"uid-{number}"
        if (mark := mcm_mark(uid)) in seen:
            return seen[mark], uid
        seen[mark] = uid
    raise AssertionError


async def test_eldest_of_two_registrations_with_same_mark_keeps_mcm() -> None:
    world = await World.begin()
    elder, younger = same_mark()
    watched = Watched(world.stores)
    world.put("foo", uid=elder, mode="Dedicated", made="2026-01-01T00:00:00Z")
    world.put("bar", uid=younger, mode="Dedicated", of="other", made="2026-01-02T00:00:00Z")
    assert eldest_of(mcm_mark(younger), stores=world.stores) == elder
    for _ in range(2):
        await world.reconciler.reconcile(KEY)
        await world.reconciler.reconcile(("", "bar"))
    assert world.programs.names() == [mcm_name("cp", uid=elder)]
    # The deletion of the elder enqueues the younger, which may then use the mark.
    watched.woken()
    world.drop("foo")
    assert watched.names("dedicatedmcm") == {"foo", "bar"}


async def test_paused_registration_gets_renewed_token(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await World.begin(config=ClusterConfig(server="https://127.0.0.1:1", ca_data=None, token="own"))
    tokens = itertools.count()
    monkeypatch.setattr(world.identities, "token", lambda _: answer(f"token-{next(tokens)}"))
    monkeypatch.setattr(world.identities, "renewed_in", lambda _: 400.0)
    world.put("foo", uid="first", mode="Dedicated")
    result = await world.reconciler.reconcile(KEY)
    # The requeue comes before the expiry of the token, even with a short lifetime.
    assert result is not None
    assert result.requeue_after_seconds is not None
    assert result.requeue_after_seconds <= 480.0
    obj = copy.deepcopy(world.api.registrations["foo"])
    obj["metadata"] |= {"resourceVersion": str(next(_versions)), "annotations": {PAUSED_ANNOTATION: "true"}}
    world.stores.registrations.apply(obj)
    assert await world.reconciler.reconcile(KEY) is not None
    [component] = world.programs.present.values()
    assert component.files["token"].content == b"token-1"


async def answer(text: str) -> str:
    return text
