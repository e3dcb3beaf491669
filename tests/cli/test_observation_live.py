"""Events, logs and use of control planes on a real management cluster."""

from __future__ import annotations

import json
import time

import pytest

from .typed import Kplane

pytestmark = pytest.mark.integration


def test_events_logs_and_usage_follow_control_plane_lifecycle(kplane: Kplane, small: str) -> None:
    kplane("create", "seen", "--class", small)
    try:
        with kplane.running("events", "seen", "--watch") as output:
            assert output.readline().split() == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
            kplane("pause", "seen")
            kplane("resume", "seen")
            while "ControlPlane/seen" not in (line := output.readline()):
                assert line, "the watch ended"
        events = kplane("events", "seen").stdout.splitlines()
        assert events[0].split() == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
        assert all("ControlPlane/seen" in line for line in events[1:])
        items = json.loads(kplane("events", "seen", "-o", "json").stdout)["items"]
        assert len(items) == len(events) - 1
        assert {item["involvedObject"]["name"] for item in items} == {"seen"}

        assert "kplane wake seen" in kplane("logs", "seen", code=1).stderr
        assert "kplane move seen --to Dedicated" in kplane("logs", "seen", "--of", "etcd", code=1).stderr
        assert "kplane register seen" in kplane("logs", "seen", "--of", "controllers", code=1).stderr
        kplane("wake", "seen")
        kplane("register", "seen")
        logged = kplane("logs", "seen", "--tail", "5").stdout.splitlines()
        assert len(logged) == 5
        with kplane.running("logs", "seen", "--follow", "--tail", "3") as output:
            assert all(output.readline() for _ in range(3))
        eventually(lambda: kplane("logs", "seen", "--of", "controllers", "--tail", "2").stdout.splitlines()[1])

        def controllers_are_measured() -> str:
            head, *rows = kplane("top", "--sort", "memory").stdout.splitlines()
            assert head.split()[:6] == ["NAME", "STATE", "KEYS", "BYTES", "QUOTA", "MEMORY"]
            cells = next(row.split() for row in rows if row.split()[0] == "seen")
            assert cells[1] == "awake"
            # Memory of the API server and of the controllers.
            assert sum(cell.endswith("Mi") for cell in cells) >= 2
            return cells[0]

        eventually(controllers_are_measured)
        with kplane.running("top", "--watch", "--interval", "0.5") as output:
            rows = (line for line in output if line.startswith("seen "))
            assert [next(rows).split()[0] for _ in range(2)] == ["seen", "seen"]
        kplane("unregister", "seen")
    finally:
        kplane("delete", "seen", "--yes")
    assert "there is no ControlPlane seen" in kplane("events", "seen", code=3).stderr
    assert "there is no ControlPlane seen" in kplane("logs", "seen", code=3).stderr


def test_logs_of_dedicated_etcd_are_printed(kplane: Kplane, small: str) -> None:
    kplane("create", "apart", "--class", small, "--mode", "Dedicated")
    try:
        assert '"caller":"embed/' in kplane("logs", "apart", "--of", "etcd").stdout
    finally:
        kplane("delete", "apart", "--yes")


def eventually(probe: object) -> None:
    """Retry the probe until it returns a true value."""
    deadline = time.monotonic() + 60.0
    while True:
        try:
            if probe():  # type: ignore[operator]
                return
        except (AssertionError, IndexError, StopIteration):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)
