"""Status of a ControlPlaneClass: its control planes, unserved fields, and the events that enqueue the class."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from kplane.api import ControlPlaneClass
from kplane.controlplane_operator.addons.bundles import Bundles
from kplane.controlplane_operator.classes.reconciler import ControlPlaneClassReconciler
from kplane.controlplane_operator.watch import event_routing
from kplane.controlplane_operator.watch.class_usage import named, unserved
from kplane.controlplane_operator.watch.event_routing import connect
from kplane.controlplane_operator.watch.queues import Queues
from kplane.controlplane_operator.watch.stores import Stores

from .queues import taken


def control_plane(
    name: str,
    *,
    chosen: str | None = "gold",
    version: int = 1,
    reason: str | None = None,
    adopted: bool = False,
    asleep: bool = False,
) -> dict[str, Any]:
    spec: dict[str, Any] = {"classRef": {"name": chosen}} if chosen is not None else {}
    if adopted:
        spec["endpointRef"] = {"name": "theirs"}
    conditions = [{"type": "Ready", "status": "False", "reason": reason}] if reason is not None else []
    conditions += [{"type": "Hibernated", "status": "True", "reason": "Hibernated"}] if asleep else []
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": str(version)},
        "spec": spec,
        "status": {"conditions": conditions},
    }


def gold(**auth: str) -> ControlPlaneClass:
    return ControlPlaneClass.model_validate({"metadata": {"name": "gold"}, "spec": {"auth": auth}})


def test_unserved_names_model_and_role_with_affected_control_planes() -> None:
    users = [
        control_plane("a", adopted=True),
        control_plane("b", reason="RoleNotFound"),
        control_plane("c", reason="Provisioning"),
    ]
    [model, role] = unserved(gold(model="x509", defaultRole="tenant-admin"), users=users)
    assert "auth.model x509" in model
    assert "control plane a" in model
    assert "ClusterRole tenant-admin" in role
    assert "control plane b" in role
    assert unserved(gold(model="token"), users=[users[0], users[2]]) == []


def test_unserved_names_unchecked_role_of_sleeping_control_planes() -> None:
    users = [control_plane("a"), control_plane("b", reason="RoleNotFound"), control_plane("c", asleep=True)]
    [missing, unknown] = unserved(gold(defaultRole="tenant-admin"), users=users)
    assert missing == "ClusterRole tenant-admin, auth.defaultRole, does not exist in control plane b"
    assert "ClusterRole tenant-admin, auth.defaultRole, was not looked for in sleeping control plane c" in unknown
    # Each API server has ClusterRole edit.
    assert unserved(gold(defaultRole="edit"), users=[users[0], users[2]]) == []


def test_unserved_names_unsupported_default_service() -> None:
    spec = {"defaultServices": ["Controllers", "workloads"]}
    control_plane_class = ControlPlaneClass.model_validate({"metadata": {"name": "gold"}, "spec": spec})
    assert unserved(control_plane_class, users=[]) == ["nothing serves Workloads in defaultServices; remove it"]


def test_named_lists_five_control_planes_and_counts_the_rest() -> None:
    assert named([control_plane("a")]) == "control plane a"
    many = named([control_plane(f"t{number}") for number in range(200)])
    assert many == "control planes t0, t1, t2, t3, t4 and 195 more"


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> tuple[Stores, Queues]:
    monkeypatch.setattr(event_routing, "_CLASS_SECONDS", 0.02)
    stores, queues = Stores(), Queues()
    connect(stores, queues=queues)
    return stores, queues


async def given(queues: Queues, number: int) -> list[str]:
    """Take `number` keys from the queue of classes, and all keys that follow within 0.1 s."""
    names: list[str] = []

    async def take() -> None:
        key = await taken(queues.classes)
        names.append(key[1])
        queues.classes.done(key)

    async with asyncio.timeout(10.0):
        while len(names) < number:
            await take()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            while True:
                await take()
    # On a busy machine, a key may arrive at the moment of the timeout.
    while len(queues.classes):
        await take()
    return sorted(names)


async def test_changes_of_200_control_planes_enqueue_their_class_once(wired: tuple[Stores, Queues]) -> None:
    stores, queues = wired
    for number in range(200):
        stores.control_planes.apply(control_plane(f"t{number}"))
    assert await given(queues, 1) == ["gold"]
    for number in range(200):
        stores.control_planes.remove(control_plane(f"t{number}", version=2))
    assert await given(queues, 1) == ["gold"]


async def test_class_is_enqueued_only_for_changes_that_affect_its_status(
    wired: tuple[Stores, Queues],
) -> None:
    stores, queues = wired
    stores.control_planes.apply(control_plane("a"))
    assert await given(queues, 1) == ["gold"]
    stores.control_planes.apply(control_plane("a", version=2, reason="Provisioning"))
    assert await given(queues, 0) == []
    stores.control_planes.apply(control_plane("a", version=3, reason="RoleNotFound"))
    assert await given(queues, 1) == ["gold"]
    stores.control_planes.apply(control_plane("a", version=4, chosen="silver"))
    assert await given(queues, 2) == ["gold", "silver"]
    stores.control_planes.apply(control_plane("a", version=5, chosen="silver", asleep=True))
    assert await given(queues, 1) == ["silver"]


async def test_class_status_change_enqueues_no_control_plane(wired: tuple[Stores, Queues]) -> None:
    stores, queues = wired
    stores.control_planes.apply(control_plane("a"))
    written = {"metadata": {"name": "gold", "uid": "gold", "resourceVersion": "5"}, "spec": {}}
    stores.classes.apply(written)
    while len(queues.control_planes):
        queues.control_planes.done(await taken(queues.control_planes))
    await given(queues, 1)
    stores.classes.apply({**written, "metadata": {**written["metadata"], "resourceVersion": "6"}, "status": {"a": 1}})
    assert len(queues.classes) == 0
    assert await given(queues, 1) == ["gold"]
    assert len(queues.control_planes) == 0
    spec = {"deletionPolicy": "Destroy"}
    stores.classes.apply({**written, "metadata": {**written["metadata"], "resourceVersion": "7"}, "spec": spec})
    assert len(queues.control_planes) == 1
    assert len(queues.classes) == 1


class Written:
    """Records written statuses and posted Events."""

    def __init__(self) -> None:
        self.status: Any = None
        self.said: list[tuple[str, str, bool]] = []

    async def write(self, store: Any, current: Any, *, status: Any) -> None:
        self.status = status

    def record(self, about: Any, *, reason: str, message: str, warning: bool) -> None:
        assert about.resource.kind == "ControlPlaneClass"
        self.said.append((reason, message, warning))


def class_object(version: int, uid: str = "first", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "gold", "uid": uid, "resourceVersion": str(version), "generation": 1}, "spec": spec}


async def test_invalid_class_is_not_ready_and_counts_its_control_planes() -> None:
    stores, written = Stores(), Written()
    context: Any = SimpleNamespace(stores=stores, status=written, events=written)
    reconciler = ControlPlaneClassReconciler(context, bundles=Bundles(stores.bundles, namespace="kplane-system"))
    stores.control_planes.apply(control_plane("a"))
    stores.classes.apply(class_object(1, auth={"model": "oidc"}))
    await reconciler.reconcile(("", "gold"))
    [ready] = written.status.conditions
    assert (ready.type, ready.status, ready.reason) == ("Ready", "False", "ClassInvalid")
    assert "spec.auth.model" in ready.message
    assert written.status.control_planes == 1


async def test_deletion_of_used_class_posts_one_warning() -> None:
    stores, written = Stores(), Written()
    context: Any = SimpleNamespace(stores=stores, status=written, events=written)
    reconciler = ControlPlaneClassReconciler(context, bundles=Bundles(stores.bundles, namespace="kplane-system"))
    key = ("", "gold")
    stores.classes.apply(class_object(1))
    await reconciler.reconcile(key)
    stores.classes.remove(class_object(2))
    await reconciler.reconcile(key)
    assert written.said == []

    stores.control_planes.apply(control_plane("a"))
    stores.classes.apply(class_object(3))
    await reconciler.reconcile(key)
    stores.classes.remove(class_object(4))
    for _ in range(2):
        await reconciler.reconcile(key)
    [(reason, message, warning)] = written.said
    assert (reason, warning) == ("DeletedInUse", True)
    assert "control plane a" in message

    # The class was deleted and created again before the next reconcile.
    stores.classes.apply(class_object(5))
    await reconciler.reconcile(key)
    stores.classes.remove(class_object(6))
    stores.classes.apply(class_object(7, uid="second"))
    await reconciler.reconcile(key)
    assert len(written.said) == 2
