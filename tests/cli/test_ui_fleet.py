"""What the page of `kplane ui` shows of objects."""

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


def test_a_page_without_control_planes() -> None:
    totals = {"controlPlanes": 0, "phases": {}, "keys": 0, "bytes": 0, "memory": 0, "migrating": 0}
    assert show_fleet([], [], usages={}) == {"totals": totals, "controlPlanes": []}


def test_rows_are_by_name_and_summed_up() -> None:
    storage = {"keys": 215, "bytes": 1024, "growth": "Allowed"}
    shown = show_fleet(
        [control_plane("globex", phase="Ready", storage=storage), control_plane("acme", phase="Hibernated")],
        [],
        usages={},
    )
    assert [row["name"] for row in shown["controlPlanes"]] == ["acme", "globex"]
    assert shown["totals"]["phases"] == {"Hibernated": 1, "Ready": 1}
    assert (shown["totals"]["keys"], shown["totals"]["bytes"]) == (215, 1024)


def test_one_that_no_operator_has_seen_is_pending() -> None:
    [row] = show_fleet([control_plane("acme")], [], usages={})["controlPlanes"]
    assert (row["phase"], row["home"], row["keys"], row["why"]) == ("Pending", "Virtual", None, "")


def test_a_row_says_why_it_is_not_ready() -> None:
    said = condition("Ready", "False", "ClassNotFound", "there is no ControlPlaneClass gold")
    [row] = show_fleet([control_plane("acme", phase="Pending", conditions=[said])], [], usages={})["controlPlanes"]
    assert row["why"] == "ClassNotFound: there is no ControlPlaneClass gold"


def test_an_adopted_one_has_no_home_of_kplane() -> None:
    [row] = show_fleet([control_plane("acme", spec={"endpointRef": {"name": "theirs"}})], [], usages={})[
        "controlPlanes"
    ]
    assert row["home"] == "Adopted"


def test_a_row_says_since_when_it_sleeps() -> None:
    asleep = {"since": CREATED, "reason": "Idle", "nextWake": "2026-11-26T02:00:00Z"}
    [row] = show_fleet([control_plane("acme", phase="Hibernated", hibernation=asleep)], [], usages={})["controlPlanes"]
    assert row["asleep"] == {
        "since": "2026-11-26T01:00:00+00:00",
        "reason": "Idle",
        "nextWake": "2026-11-26T02:00:00+00:00",
    }


def test_a_migration_is_shown_until_the_address_has_changed() -> None:
    moving = {"from": HOME, "to": {"mode": "Dedicated"}, "step": "Copying", "percent": 40}
    shown = show_fleet([control_plane("acme", migration=moving)], [], usages={})
    assert shown["totals"]["migrating"] == 1
    assert shown["controlPlanes"][0]["migration"] == {"step": "Copying", "percent": 40, "message": None}
    shown = show_fleet([control_plane("acme", migration=moving | {"step": "Retaining"})], [], usages={})
    assert (shown["totals"]["migrating"], shown["controlPlanes"][0]["migration"]) == (0, None)


def test_a_registration_says_why_it_does_not_run() -> None:
    failed = condition("Running", "False", "Restarting", "exit code 1")
    running = condition("Running", "True", "Running", "for an hour")
    registrations = [
        registration("acme", services=["Controllers"], conditions=[running]),
        registration("acme-scheduler", services=["Scheduler"], conditions=[failed]),
    ]
    [row] = show_fleet([control_plane("acme")], registrations, usages={})["controlPlanes"]
    assert row["registrations"] == [
        {"name": "acme", "services": ["Controllers"], "running": "True", "message": ""},
        {"name": "acme-scheduler", "services": ["Scheduler"], "running": "False", "message": "exit code 1"},
    ]


def test_a_row_says_what_it_takes() -> None:
    usage = Usage(name="acme", state="awake", memory_bytes=150, controllers_bytes=24, rate=2.5)
    shown = show_fleet([control_plane("acme"), control_plane("globex")], [], usages={"acme": usage})
    acme, globex = shown["controlPlanes"]
    assert (acme["memory"], acme["rate"]) == (174, 2.5)
    assert (globex["memory"], globex["rate"]) == (None, None)
    assert shown["totals"]["memory"] == 174
