"""Output of `kplane move --plan`, by the status that the operator reports."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kplane.api import ControlPlane
from kplane.cli import own_kubeconfig
from kplane.cli.main import app
from kplane.client import ControlPlanes

from .test_kubeconfigs import entry

UNGUARDED = {
    "type": "LeasesUnguarded",
    "status": "False",
    "reason": "WebhooksOnLeases",
    "message": "controllers run by Leases in kube-system, which wait for webhook 'slow.example.com'",
    "lastTransitionTime": "2026-11-26T01:00:00Z",
}
HOMES = {"from": {"mode": "Virtual"}, "to": {"mode": "Dedicated"}}


def planned(*conditions: dict[str, str]) -> ControlPlane:
    plan = {"keys": 231, "bytes": 4096, "seconds": 5, "blockers": []}
    status = {"observedGeneration": 2, "migration": {**HOMES, "plan": plan}, "conditions": list(conditions)}
    metadata = {"name": "acme", "uid": "0-1", "generation": 2}
    return ControlPlane.model_validate({"metadata": metadata, "spec": {"mode": "Virtual"}, "status": status})


class Management:
    """A management cluster whose operator has planned the move of `acme`."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane

    async def get(self, _: str) -> ControlPlane:
        return self._control_plane

    async def move(self, _: str, *, plan: bool, **__: Any) -> ControlPlane:
        assert plan
        return self._control_plane

    async def wait(self, _: str, settled: Callable[[ControlPlane], bool], **__: Any) -> ControlPlane:
        assert settled(self._control_plane)
        return self._control_plane


@pytest.mark.parametrize("conditions", [[UNGUARDED], []])
def test_move_plan_warns_of_webhooks_on_leases(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, conditions: list[dict[str, str]]
) -> None:
    @contextlib.asynccontextmanager
    async def connect(*_: Any) -> AsyncIterator[Management]:
        yield Management(planned(*conditions))

    monkeypatch.setattr(ControlPlanes, "connect", connect)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.delenv("KPLANE_CONTEXT", raising=False)
    own_kubeconfig.add_context(entry("kplane"))
    result = CliRunner().invoke(app, ["move", "acme", "--to", "Dedicated", "--plan"])
    assert result.exit_code == 0, result.output
    *warnings, estimate = result.stdout.splitlines()
    assert estimate.startswith("231 keys, 4 KiB, about 5 s")
    assert [f"warning: {condition['message']} ({condition['reason']})" for condition in conditions] == warnings
