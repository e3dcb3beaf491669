"""Rows and totals of the page of `kplane ui`."""

from __future__ import annotations

from typing import Any

from kplane.api import ControlPlane, ControlPlaneRegistration
from kplane.cli.ui.fleet import show_fleet
from kplane.cli.usage import Usage

CREATED = "2026-11-26T01:00:00Z"
HOME = {"mode": "Virtual"}


def control_plane(name: str, *, spec: dict[str, Any] | None = None, **status: Any) -> ControlPlane:
    metadata = {"name": name, "uid": name, "creationTimestamp": CREATED}
    return ControlPlane.model_validate({"metadata": metadata, "spec": spec or {}, "status": status})


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": CREATED}


def registration(name: str, **status: Any) -> ControlPlaneRegistration:
    body = {"metadata": {"name": name}, "spec": {"controlPlaneRef": {"name": "acme"}}, "status": status}
    return ControlPlaneRegistration.model_validate(body)


def test_fleet_without_control_planes_has_zero_totals() -> None:
    totals = {"controlPlanes": 0, "phases": {}, "keys": 0, "bytes": 0, "memory": 0, "migrating": 0}
    assert show_fleet([], [], usages={}) == {"totals": totals, "controlPlanes": []}


def test_fleet_rows_are_sorted_by_name_and_totals_are_summed() -> None:
    storage = {"keys": 215, "bytes": 1024, "growth": "Allowed"}
    fleet = show_fleet(
        [control_plane("globex", phase="Ready", storage=storage), control_plane("acme", phase="Hibernated")],
        [],
        usages={},
    )
    assert [row["name"] for row in fleet["controlPlanes"]] == ["acme", "globex"]
    assert fleet["totals"]["phases"] == {"Hibernated": 1, "Ready": 1}
    assert (fleet["totals"]["keys"], fleet["totals"]["bytes"]) == (215, 1024)


def test_row_without_status_is_pending() -> None:
    [row] = show_fleet([control_plane("acme")], [], usages={})["controlPlanes"]
    assert (row["phase"], row["home"], row["keys"], row["why"]) == ("Pending", "Virtual", None, "")


def test_row_shows_reason_and_message_of_ready_condition() -> None:
    not_ready = condition("Ready", "False", "ClassNotFound", "there is no ControlPlaneClass gold")
    [row] = show_fleet([control_plane("acme", phase="Pending", conditions=[not_ready])], [], usages={})["controlPlanes"]
    assert row["why"] == "ClassNotFound: there is no ControlPlaneClass gold"


def test_row_of_adopted_control_plane_has_home_adopted() -> None:
    [row] = show_fleet([control_plane("acme", spec={"endpointRef": {"name": "theirs"}})], [], usages={})[
        "controlPlanes"
    ]
    assert row["home"] == "Adopted"


def test_row_of_hibernated_control_plane_shows_hibernation() -> None:
    hibernation = {"since": CREATED, "reason": "Idle", "nextWake": "2026-11-26T02:00:00Z"}
    [row] = show_fleet([control_plane("acme", phase="Hibernated", hibernation=hibernation)], [], usages={})[
        "controlPlanes"
    ]
    assert row["asleep"] == {
        "since": "2026-11-26T01:00:00+00:00",
        "reason": "Idle",
        "nextWake": "2026-11-26T02:00:00+00:00",
    }


def test_migration_is_shown_until_step_retaining() -> None:
    migration = {"from": HOME, "to": {"mode": "Dedicated"}, "step": "Copying", "percent": 40}
    fleet = show_fleet([control_plane("acme", migration=migration)], [], usages={})
    assert fleet["totals"]["migrating"] == 1
    assert fleet["controlPlanes"][0]["migration"] == {"step": "Copying", "percent": 40, "message": None}
    fleet = show_fleet([control_plane("acme", migration=migration | {"step": "Retaining"})], [], usages={})
    assert (fleet["totals"]["migrating"], fleet["controlPlanes"][0]["migration"]) == (0, None)


def test_registration_message_is_shown_only_if_not_running() -> None:
    not_running = condition("Running", "False", "Restarting", "exit code 1")
    running = condition("Running", "True", "Running", "for an hour")
    registrations = [
        registration("acme", services=["Controllers"], conditions=[running]),
        registration("acme-scheduler", services=["Scheduler"], conditions=[not_running]),
    ]
    [row] = show_fleet([control_plane("acme")], registrations, usages={})["controlPlanes"]
    assert row["registrations"] == [
        {"name": "acme", "services": ["Controllers"], "running": "True", "message": ""},
        {"name": "acme-scheduler", "services": ["Scheduler"], "running": "False", "message": "exit code 1"},
    ]


def test_row_shows_memory_and_rate_of_usage() -> None:
    usage = Usage(name="acme", state="awake", memory_bytes=150, controllers_bytes=24, rate=2.5)
    fleet = show_fleet([control_plane("acme"), control_plane("globex")], [], usages={"acme": usage})
    acme, globex = fleet["controlPlanes"]
    assert (acme["memory"], acme["rate"]) == (174, 2.5)
    assert (globex["memory"], globex["rate"]) == (None, None)
    assert fleet["totals"]["memory"] == 174
