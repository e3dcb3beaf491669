"""Status of a ControlPlaneClass: its control planes, unserved fields, and the events that enqueue the class."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kplane.api import ControlPlaneClass
from kplane.controlplane_operator.addons.bundles import Bundles
from kplane.controlplane_operator.classes.reconciler import ControlPlaneClassReconciler
from kplane.controlplane_operator.watch.class_usage import named, unserved
from kplane.controlplane_operator.watch.stores import Stores

from .watched import Watched


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


def classes(watched: Watched) -> set[str]:
    """Return the classes to reconcile after a delay, in which changes of many control planes become one write."""
    delayed = watched.delayed.get("controlplaneclass", set())
    assert watched.names("controlplaneclass") == set()
    return delayed


def test_changes_of_200_control_planes_enqueue_their_class_after_a_delay() -> None:
    stores = Stores()
    watched = Watched(stores)
    for number in range(200):
        stores.control_planes.apply(control_plane(f"t{number}"))
    assert classes(watched) == {"gold"}
    for number in range(200):
        stores.control_planes.remove(control_plane(f"t{number}", version=2))
    assert classes(watched) == {"gold"}


def test_class_is_enqueued_only_for_changes_that_affect_its_status() -> None:
    stores = Stores()
    watched = Watched(stores)
    stores.control_planes.apply(control_plane("a"))
    assert classes(watched) == {"gold"}
    stores.control_planes.apply(control_plane("a", version=2, reason="Provisioning"))
    assert classes(watched) == set()
    stores.control_planes.apply(control_plane("a", version=3, reason="RoleNotFound"))
    assert classes(watched) == {"gold"}
    stores.control_planes.apply(control_plane("a", version=4, chosen="silver"))
    assert classes(watched) == {"gold", "silver"}
    stores.control_planes.apply(control_plane("a", version=5, chosen="silver", asleep=True))
    assert classes(watched) == {"silver"}


def test_class_status_change_enqueues_no_control_plane() -> None:
    stores = Stores()
    stores.control_planes.apply(control_plane("a"))
    written = {"metadata": {"name": "gold", "uid": "gold", "resourceVersion": "5"}, "spec": {}}
    stores.classes.apply(written)
    watched = Watched(stores)
    stores.classes.apply({**written, "metadata": {**written["metadata"], "resourceVersion": "6"}, "status": {"a": 1}})
    assert watched.delayed == {"controlplaneclass": {"gold"}}
    assert watched.woken() == {}
    spec = {"deletionPolicy": "Destroy"}
    stores.classes.apply({**written, "metadata": {**written["metadata"], "resourceVersion": "7"}, "spec": spec})
    woken = watched.woken()
    assert (woken["controlplane"], woken["controlplaneclass"]) == ({"a"}, {"gold"})


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
