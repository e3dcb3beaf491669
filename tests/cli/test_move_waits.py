"""`kplane move --abort` and `--rollback` return when the operator has finished, in the home that the user asked for."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner
from typing_extensions import override

from kplane.api import ControlPlane
from kplane.cli import own_kubeconfig
from kplane.cli.main import app
from kplane.client import ControlPlanes, NotSettled, Settled

from .test_kubeconfigs import entry

Step = Callable[[dict[str, Any]], None]

VIRTUAL, DEDICATED = {"mode": "Virtual", "slot": 0}, {"mode": "Dedicated", "slot": 1}
READY = {
    "type": "Ready",
    "status": "True",
    "reason": "Reconciled",
    "message": "",
    "lastTransitionTime": "2026-11-26T01:00:00Z",
}


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.delenv("KPLANE_CONTEXT", raising=False)
    own_kubeconfig.add_context(entry("kplane"))


def merged(target: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    result = {**target} if isinstance(target, dict) else {}
    for name, value in patch.items():
        result[name] = merged(result.get(name), value)
    return {name: value for name, value in result.items() if value is not None}


class Management(ControlPlanes):
    """A management cluster with the control plane `acme`. Each wait of a command lets the operator take steps."""

    def __init__(self, status: dict[str, Any], *steps: Step) -> None:
        mode = (status.get("migration") or {"to": status["home"]})["to"]["mode"]
        self.object: dict[str, Any] = {
            "metadata": {"name": "acme", "uid": "0-1", "generation": 1},
            "spec": {"mode": mode},
            "status": {"observedGeneration": 1, "conditions": [READY], **status},
        }
        self.steps = list(steps)

    @property
    def model(self) -> ControlPlane:
        return ControlPlane.model_validate(self.object)

    @override
    async def get(self, name: str) -> ControlPlane:
        return self.model

    @override
    async def _patch(self, name: str, body: dict[str, Any]) -> ControlPlane:
        self.object = merged(self.object, body)
        self.object["metadata"]["generation"] += 1
        return self.model

    @override
    async def wait(self, name: str, until: Settled = bool, *, timeout_seconds: float = 0.0) -> ControlPlane:
        while not until(self.model):
            if not self.steps:
                raise NotSettled("the operator has nothing more to do")
            self.steps.pop(0)(self.object)
        return self.model


def observes(obj: dict[str, Any]) -> None:
    obj["status"]["observedGeneration"] = obj["metadata"]["generation"]


def forgets(obj: dict[str, Any]) -> None:
    obj["status"].pop("migration", None)


def moves(to: dict[str, Any], step: str, **more: Any) -> Step:
    def take(obj: dict[str, Any]) -> None:
        status = obj["status"]
        source = VIRTUAL if to is DEDICATED else DEDICATED
        status["migration"] = {"from": source, "to": to, "step": step, **more}
        if step in {"Retaining", "Completed"}:
            status["home"] = to

    return take


def move(monkeypatch: pytest.MonkeyPatch, management: Management, *arguments: str) -> Result:
    @contextlib.asynccontextmanager
    async def connect(*_: Any) -> AsyncIterator[Management]:
        yield management

    monkeypatch.setattr(ControlPlanes, "connect", connect)
    return CliRunner().invoke(app, ["move", "acme", *arguments])


RETAINING = {
    "home": DEDICATED,
    "migration": {"from": VIRTUAL, "to": DEDICATED, "step": "Retaining", "holdMilliseconds": 80},
}
COPYING = {"home": VIRTUAL, "migration": {"from": VIRTUAL, "to": DEDICATED, "step": "Copying"}}


def test_rollback_returns_after_the_second_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    management = Management(
        RETAINING,
        observes,
        moves(VIRTUAL, "Copying", percent=50),
        moves(VIRTUAL, "Cutting"),
        moves(VIRTUAL, "Retaining"),
        moves(VIRTUAL, "Retaining", holdMilliseconds=120),
    )
    result = move(monkeypatch, management, "--rollback")
    assert (result.exit_code, management.steps) == (0, [])
    assert "controlplane/acme is Virtual; writes waited for 120 ms" in result.stdout
    assert management.object["spec"]["mode"] == "Virtual"


@pytest.mark.parametrize("option", ["--abort", "--rollback"])
def test_end_of_move_before_the_cut_returns_when_the_move_is_gone(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    later = moves(DEDICATED, "Retaining")
    management = Management(COPYING, observes, moves(DEDICATED, "Preparing"), forgets, later)
    result = move(monkeypatch, management, option)
    assert (result.exit_code, management.steps) == (0, [later])
    assert result.stdout.splitlines()[-1] == "controlplane/acme is Virtual"
    assert management.object["spec"]["mode"] == "Virtual"


def test_abort_after_the_cut_stays_in_the_present_home(monkeypatch: pytest.MonkeyPatch) -> None:
    management = Management(RETAINING, observes)
    result = move(monkeypatch, management, "--abort")
    assert (result.exit_code, management.steps) == (0, [])
    assert result.stdout.splitlines()[-1] == "controlplane/acme is Dedicated"
    assert management.object["spec"]["mode"] == "Dedicated"


def test_abort_of_a_rollback_returns_when_the_way_back_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    back = {"home": DEDICATED, "migration": {"from": DEDICATED, "to": VIRTUAL, "step": "Copying"}}
    management = Management(back, observes, forgets)
    result = move(monkeypatch, management, "--abort")
    assert (result.exit_code, management.steps) == (0, [])
    assert result.stdout.splitlines()[-1] == "controlplane/acme is Dedicated"


def test_rollback_with_blockers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {
        "keys": 1,
        "bytes": 1,
        "seconds": 1,
        "holdMilliseconds": 1,
        "blockers": [{"reason": "RevisionTooFar", "message": "the shared etcd is too far behind"}],
    }

    def plans(obj: dict[str, Any]) -> None:
        observes(obj)
        obj["status"]["migration"] = {"from": DEDICATED, "to": VIRTUAL, "plan": plan}

    result = move(monkeypatch, Management(RETAINING, plans), "--rollback")
    assert result.exit_code == 1
    assert "acme does not move yet: the shared etcd is too far behind (RevisionTooFar)" in result.stderr
