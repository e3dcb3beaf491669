"""Setup of the density benchmark: refused registrations, and limits of the machine."""

from __future__ import annotations

import pytest

from benchmarks import density


def test_refused_names_registrations_with_reason_service_taken() -> None:
    taken = {"type": "Ready", "status": "False", "reason": "ServiceTaken", "message": "Controllers belong to first"}
    waiting = {"type": "Ready", "status": "False", "reason": "ControlPlaneNotReady", "message": "it starts"}
    statuses = {
        "first": {"ready": True, "conditions": [{"type": "Ready", "status": "True", "reason": "Resolved"}]},
        "second": {"ready": False, "conditions": [{"type": "Running", "status": "False", "reason": "Ended"}, taken]},
        "third": {"conditions": [waiting]},
        "fourth": {},
    }
    assert density._refused(statuses) == ["second: Controllers belong to first"]


def test_main_exits_at_once_when_inotify_instances_are_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requests: list[int] = []

    def shortage(needed: int) -> str:
        requests.append(needed)
        return "raise the limit"

    monkeypatch.setattr(density, "inotify_shortage", shortage)
    monkeypatch.setattr("sys.argv", ["density", "--control-planes", "10", "60"])
    with pytest.raises(SystemExit):
        density.main()
    assert requests == [13 + 61 * 13]
    assert "raise the limit" in capsys.readouterr().err
