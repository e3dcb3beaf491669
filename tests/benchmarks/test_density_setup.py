"""The benchmark of density measures nothing that the operator refuses, or that the machine cannot hold."""

from __future__ import annotations

import pytest

from benchmarks import density


def test_refused_names_registrations_whose_service_another_one_has() -> None:
    taken = {"type": "Ready", "status": "False", "reason": "ServiceTaken", "message": "Controllers belong to first"}
    waiting = {"type": "Ready", "status": "False", "reason": "ControlPlaneNotReady", "message": "it starts"}
    statuses = {
        "first": {"ready": True, "conditions": [{"type": "Ready", "status": "True", "reason": "Resolved"}]},
        "second": {"ready": False, "conditions": [{"type": "Running", "status": "False", "reason": "Ended"}, taken]},
        "third": {"conditions": [waiting]},
        "fourth": {},
    }
    assert density._refused(statuses) == ["second: Controllers belong to first"]


def test_main_ends_at_once_when_inotify_instances_are_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    def shortage(needed: int) -> str:
        asked.append(needed)
        return "raise the limit"

    monkeypatch.setattr(density, "inotify_shortage", shortage)
    monkeypatch.setattr("sys.argv", ["density", "--control-planes", "10", "60"])
    with pytest.raises(SystemExit):
        density.main()
    assert asked == [13 + 61 * 13]
    assert "raise the limit" in capsys.readouterr().err
