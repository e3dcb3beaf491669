"""Metrics of control planes that are not Ready: bounded in number, and separated by cause (User or System)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kplane.controlplane_operator.metrics import Inventory, Metrics
from kplane.controlplane_operator.watch.stores import Stores

_NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)


def at(minutes: float) -> str:
    return (_NOON + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind: str, status: str, reason: str, *, since: float = 0) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": "m", "lastTransitionTime": at(since)}


def control_plane(name: str, *conditions: dict[str, Any], phase: str = "", deleted: bool = False) -> dict[str, Any]:
    metadata = {"name": name, "uid": name, "resourceVersion": "1", "creationTimestamp": at(-60)}
    if deleted:
        metadata["deletionTimestamp"] = at(30)
    return {"metadata": metadata, "spec": {}, "status": {"phase": phase, "conditions": list(conditions)}}


def collected(*control_planes: dict[str, Any]) -> tuple[dict[tuple[str, str, str], float], dict[str, float]]:
    """Return minutes since noon by name, reason and cause, and the number of unlisted control planes by cause."""
    stores, metrics = Stores(), Metrics()
    metrics.registry.register(Inventory(stores.control_planes))
    for obj in control_planes:
        stores.control_planes.apply(obj)
    families = {family.name: family.samples for family in metrics.registry.collect()}
    listed = {
        (sample.labels["control_plane"], sample.labels["reason"], sample.labels["cause"]): (
            sample.value - _NOON.timestamp()
        )
        / 60
        for sample in families["kplane_control_plane_not_ready_timestamp_seconds"]
    }
    unlisted = families["kplane_control_planes_not_ready_unlisted"]
    return listed, {sample.labels["cause"]: sample.value for sample in unlisted}


@pytest.mark.parametrize(
    ("obj", "reason", "cause", "since"),
    [
        (control_plane("a", condition("Ready", "False", "EtcdUnavailable", since=5)), "EtcdUnavailable", "System", 5),
        (control_plane("a", condition("Ready", "False", "Provisioning")), "Provisioning", "System", 0),
        (control_plane("a", condition("Ready", "False", "ClassNotFound")), "ClassNotFound", "User", 0),
        (control_plane("a"), "Unknown", "System", -60),
        # A reason of a newer operator. Labels are limited to known reasons.
        (control_plane("a", condition("Ready", "False", "OfTomorrow")), "Unknown", "System", 0),
        (
            control_plane(
                "a",
                condition("Ready", "False", "EtcdUnavailable"),
                condition("Paused", "True", "PausedByAnnotation"),
            ),
            "PausedByAnnotation",
            "User",
            0,
        ),
        (
            control_plane("a", condition("Paused", "True", "PausedByAnnotation"), deleted=True),
            "PausedByAnnotation",
            "User",
            30,
        ),
        (
            control_plane("a", condition("Ready", "True", "Reconciled"), deleted=True),
            "Deleting",
            "System",
            30,
        ),
        (
            control_plane(
                "a",
                condition("Ready", "False", "Deleting"),
                condition("Deleting", "True", "VerifyingEmpty"),
                deleted=True,
            ),
            "VerifyingEmpty",
            "System",
            30,
        ),
    ],
)
def test_control_plane_that_is_not_ready_has_a_series(
    obj: dict[str, Any], reason: str, cause: str, since: float
) -> None:
    assert collected(obj) == ({("a", reason, cause): since}, {"User": 0, "System": 0})


@pytest.mark.parametrize(
    "obj",
    [
        control_plane("a", condition("Ready", "True", "Reconciled"), phase="Ready"),
        control_plane("a", condition("Ready", "True", "Hibernated"), phase="Hibernated"),
        control_plane("a", condition("Ready", "False", "Migrating"), phase="Migrating"),
    ],
)
def test_control_plane_that_is_served_asleep_or_moves_has_no_series(obj: dict[str, Any]) -> None:
    assert collected(obj) == ({}, {"User": 0, "System": 0})


def test_series_are_bounded_and_mistakes_do_not_displace_faults() -> None:
    typos = [control_plane(f"t{n}", condition("Ready", "False", "ClassNotFound", since=-50)) for n in range(200)]
    faults = [control_plane(f"f{n}", condition("Ready", "False", "StartFailed", since=n)) for n in range(60)]
    listed, unlisted = collected(*typos, *faults)
    assert {name for name, _, _ in listed} == {f"f{n}" for n in range(50)}
    assert unlisted == {"User": 200, "System": 10}
    listed, unlisted = collected(*typos, *faults[:3])
    assert len(listed) == 50
    assert {name for name, _, cause in listed if cause == "System"} == {"f0", "f1", "f2"}
    assert unlisted == {"User": 153, "System": 0}
