"""What becomes of the mcm of a registration in all orders, and where an end lasts: no real runtime shows it at will."""

from __future__ import annotations

import asyncio
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
from kplane.controlplane_operator.watch.event_routing import connect
from kplane.controlplane_operator.watch.queues import Queues
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import CLUSTER_ROLES
from kplane.workloads import Phase, Runtime, RuntimeFailure

from .queues import taken

KEY: Key = ("", "foo")
_versions = itertools.count(100)


class Api:
    """An API server that has registrations, and forgets all else."""

    def __init__(self) -> None:
        self.registrations: dict[str, dict[str, Any]] = {}
        self.written = 0
        self.deleted: list[str] = []
        self.before_rights = asyncio.Event()
        self.before_rights.set()
        self.before_list = asyncio.Event()
        self.before_list.set()

    async def apply(self, resource: Any, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        if resource == CLUSTER_ROLES:
            await self.before_rights.wait()
        if resource.plural != "controlplaneregistrations":
            return {"metadata": {**body["metadata"], "uid": "account"}}
        own = body["status"]["conditions"]
        found = self.registrations[body["metadata"]["name"]]["status"].get("conditions", [])
        return self._stored(body, {"conditions": [each for each in found if each["type"] != "DedicatedReady"] + own})

    async def patch(self, _: Any, name: str, body: dict[str, Any], **__: Any) -> dict[str, Any]:
        return self._stored({"metadata": {"name": name}}, body["status"])

    def _stored(self, body: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
        self.written += 1
        stored = copy.deepcopy(self.registrations[body["metadata"]["name"]])
        stored["status"] = {name: each for name, each in (stored["status"] | status).items() if each is not None}
        stored["metadata"]["resourceVersion"] = str(next(_versions))
        self.registrations[stored["metadata"]["name"]] = stored
        return copy.deepcopy(stored)

    async def delete(self, resource: Any, name: str, **_: Any) -> None:
        self.deleted.append(f"{resource.plural}/{name}")

    async def list(self, resource: Any, **_: Any) -> Any:
        await self.before_list.wait()
        ours = resource.plural == "controlplaneregistrations"
        return SimpleNamespace(items=list(self.registrations.values()) if ours else [])


class Programs:
    """A runtime in which all is ready at once, and ends when `lasts` says so."""

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
    """Takes Events."""

    def __init__(self) -> None:
        self.reasons: list[tuple[str, bool]] = []

    def record(self, _: Any, *, reason: str, message: str, warning: bool = False) -> None:
        self.reasons.append((reason, warning))


class World:
    """One control plane, and who looks after mcm of registrations."""

    def __init__(self, *, config: ClusterConfig | None = None) -> None:
        self.api, self.programs, self.said = Api(), Programs(), Said()
        self.stores, self.queues, self.metrics = Stores(), Queues(), Metrics()
        client, runtime = cast("Client", self.api), cast("Runtime", self.programs)
        self.identities = McmIdentities(client)
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

    def put(self, name: str, *, uid: str, mode: str, of: str = "cp", made: str = "", **status: Any) -> None:
        found = self.api.registrations.get(name, {})
        same = found and found["metadata"]["uid"] == uid
        known = found.get("status", {}) if same else {}
        metadata = {"name": name, "uid": uid, "generation": 1, "resourceVersion": str(next(_versions))}
        obj = {
            "metadata": metadata | ({"creationTimestamp": made} if made else {}),
            "spec": {"controlPlaneRef": {"name": of}, "mode": mode},
            "status": known | {"ready": True, "mode": mode, "controlPlaneUID": f"uid-{of}"} | status,
        }
        self.api.registrations[name] = obj
        self.stores.registrations.apply(copy.deepcopy(obj))

    def drop(self, name: str) -> None:
        gone = self.api.registrations.pop(name)
        self.stores.registrations.remove({**gone, "metadata": {**gone["metadata"], "resourceVersion": "999999"}})

    def reason(self) -> str:
        conditions = self.api.registrations["foo"]["status"].get("conditions", [])
        return next((each["reason"] for each in conditions if each["type"] == "DedicatedReady"), "")


def control_plane(name: str, **metadata: Any) -> dict[str, Any]:
    fixed = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(next(_versions))}
    return {"metadata": {**fixed, **metadata}, "spec": {}}


async def test_one_that_is_made_again_has_nothing_of_the_former() -> None:
    world = World()
    world.put("foo", uid="first", mode="Dedicated")
    await world.reconciler.reconcile(KEY)
    assert world.programs.names() == [mcm_name("cp", uid="first")]
    # Both come before anybody looks.
    world.put("foo", uid="second", mode="Shared")
    await world.reconciler.reconcile(KEY)
    assert world.programs.names() == []
    assert "first" not in world.identities.holders()

    # Nothing but the program itself tells of it any more.
    world.programs.present[mcm_name("cp", uid="second")] = None
    await world.reconciler.reconcile(KEY)
    assert world.programs.names() == []

    # An operator that remembers nothing of the former one.
    world.programs.present[mcm_name("cp", uid="first")] = None
    await world.orphans.collect()
    assert world.programs.names() == []


async def test_an_end_that_lasts_is_told_once_and_is_no_trouble() -> None:
    world = World()
    connect(world.stores, queues=world.queues)
    world.put("foo", uid="first", mode="Dedicated")
    await world.reconciler.reconcile(KEY)
    world.programs.lasts = True
    world.put("foo", uid="first", mode="Shared")
    await drained(world.queues)
    world.said.reasons.clear()
    world.api.written = 0
    for _ in range(3):
        result = await world.reconciler.reconcile(KEY)
        assert result is not None
        assert world.reason() == "McmEnding"
    assert world.said.reasons == [("McmEnding", False)]
    # That it begins, and what is left.
    assert world.api.written == 2
    assert len(world.queues.mcms) == 0
    told = world.api.registrations["foo"]["status"]["conditions"][0]["message"]
    assert "pods: mcm" in told
    world.programs.lasts = False
    assert await world.reconciler.reconcile(KEY) is None
    assert world.reason() == ""


async def drained(queues: Queues) -> None:
    while len(queues.mcms):
        queues.mcms.done(await taken(queues.mcms))


async def test_an_end_that_lasts_is_awaited_though_its_rights_are_gone() -> None:
    world = World()
    world.put("foo", uid="first", mode="Dedicated")
    await world.reconciler.reconcile(KEY)
    world.programs.lasts = True
    world.drop("foo")
    assert await world.reconciler.reconcile(KEY) is not None
    await world.identities.revoke("first")
    world.programs.lasts = False
    assert await world.reconciler.reconcile(KEY) is None
    assert world.programs.names() == []


async def test_no_mcm_is_started_at_a_control_plane_that_is_removed() -> None:
    world = World()
    world.put("foo", uid="first", mode="Dedicated")
    await world.reconciler.reconcile(KEY)
    world.programs.applied.clear()
    world.stores.control_planes.apply(control_plane("cp", deletionTimestamp="2026-01-01T00:00:00Z"))
    instance = {"controlPlaneUID": "uid-cp", "mode": "Dedicated"}
    world.put("foo", uid="first", mode="Dedicated", ready=False, instance=instance)
    world.programs.lasts = True
    for _ in range(3):
        await world.reconciler.reconcile(KEY)
    # Only its end, which is known, is said in its place.
    assert "instance" in world.api.registrations["foo"]["status"]
    world.programs.lasts = False
    assert await world.reconciler.reconcile(KEY) is None
    assert (world.programs.applied, world.programs.names()) == ([], [])
    assert "instance" not in world.api.registrations["foo"]["status"]


async def test_its_mcm_ends_while_its_control_plane_sleeps() -> None:
    world = World()
    world.put("foo", uid="first", mode="Dedicated")
    await world.reconciler.reconcile(KEY)
    instance = {"controlPlaneUID": "uid-cp", "mode": "Dedicated"}
    world.put("foo", uid="first", mode="Dedicated", ready=False, instance=instance)
    # Not for any reason why it is not ready for a while.
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


async def test_who_waits_for_the_one_of_many_says_so() -> None:
    world = World()
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


async def test_of_two_with_one_mark_the_eldest_has_it_and_neither_ends_the_other() -> None:
    world = World()
    elder, younger = same_mark()
    connect(world.stores, queues=world.queues)
    world.put("foo", uid=elder, mode="Dedicated", made="2026-01-01T00:00:00Z")
    await drained(world.queues)
    world.put("bar", uid=younger, mode="Dedicated", of="other", made="2026-01-02T00:00:00Z")
    assert eldest_of(mcm_mark(younger), stores=world.stores) == elder
    for _ in range(2):
        await world.reconciler.reconcile(KEY)
        await world.reconciler.reconcile(("", "bar"))
    assert world.programs.names() == [mcm_name("cp", uid=elder)]
    # It may have it when the other one is gone, and is woken for that.
    await drained(world.queues)
    world.drop("foo")
    assert len(world.queues.mcms) == 2


@pytest.mark.parametrize("listed_first", [True, False])
async def test_rights_that_are_given_during_a_list_are_remembered(listed_first: bool) -> None:
    world = World()
    for gate in (world.api.before_list, world.api.before_rights):
        gate.clear()
    world.put("foo", uid="first", mode="Dedicated")
    tasks = [asyncio.create_task(world.identities.load()), asyncio.create_task(world.reconciler.reconcile(KEY))]
    await asyncio.sleep(0)
    gates = [world.api.before_list, world.api.before_rights]
    for gate, task in zip(
        gates if listed_first else reversed(gates), tasks if listed_first else reversed(tasks), strict=True
    ):
        gate.set()
        await task
    assert world.identities.holders() == {"first"}


async def test_a_paused_one_keeps_a_token_that_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(config=ClusterConfig(server="https://127.0.0.1:1", ca_data=None, token="own"))
    tokens = itertools.count()
    monkeypatch.setattr(world.identities, "token", lambda _: answer(f"token-{next(tokens)}"))
    monkeypatch.setattr(world.identities, "renewed_in", lambda _: 400.0)
    world.put("foo", uid="first", mode="Dedicated")
    result = await world.reconciler.reconcile(KEY)
    # Before it ends, however short a time the API server lets it last.
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
