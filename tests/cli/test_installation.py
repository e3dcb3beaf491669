"""Target cluster and refusals of `kplane init` and `kplane upgrade`."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from kplane.cli import installation, kubeconfigs, own_kubeconfig
from kplane.cli.errors import Refused
from kplane.cli.installation import Installation
from kplane.cli.kubeconfigs import Management
from kplane.cli.main import app


class Helm:
    """A fake helm that records its calls and lists the given releases."""

    def __init__(self, directory: Path) -> None:
        self.program = directory / "helm"
        self._calls = directory / "calls"
        self._listed = directory / "listed"
        self.program.write_text(f'#!/bin/sh\necho "$@" >> {self._calls}\n[ "$1" != list ] || cat {self._listed}\n')
        self.program.chmod(0o755)
        self.lists()

    def lists(self, *charts: str) -> None:
        self._listed.write_text(json.dumps([{"chart": chart, "status": "deployed"} for chart in charts]))

    @property
    def calls(self) -> list[list[str]]:
        return [line.split() for line in self._calls.read_text().splitlines()]


@pytest.fixture
def helm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Helm:
    fake = Helm(tmp_path)
    monkeypatch.setattr(installation, "resolve", lambda **_: SimpleNamespace(path=lambda _: fake.program))
    return fake


def entry(name: str, user: dict[str, Any]) -> dict[str, Any]:
    return {
        "clusters": [{"name": name, "cluster": {"server": "https://10.0.0.1:6443"}}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


@pytest.mark.parametrize(("command", "charts"), [("init", []), ("upgrade", [f"kplane-{version('kplane')}"])])
def test_install_in_tenant_context_changes_management_cluster(
    helm: Helm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, charts: list[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.delenv("KPLANE_CONTEXT", raising=False)
    own_kubeconfig.add_context(entry("work", {"token": "x"}))
    published = kubeconfigs.to_text(entry("acme", {"token": "y"}))
    merged = kubeconfigs.with_exec_credential(published, name="acme", uid=None, context=None, internal=False)
    own_kubeconfig.add_context(merged)
    assert kubeconfigs.current_context() == "kplane-acme"
    helm.lists(*charts)
    assert CliRunner().invoke(app, [command]).exit_code == 0
    assert [call[-2:] for call in helm.calls] == [["--kube-context", "work"]] * 2


def test_upgrade_refuses_to_replace_newer_release(helm: Helm) -> None:
    helm.lists("kplane-999.0.0")
    release = Installation.on(Management(), report=lambda _: None)
    with pytest.raises(Refused, match="pip install --upgrade kplane"):
        release.upgrade([])
    assert [call[0] for call in helm.calls] == ["list"]
    helm.lists("kplane-0.0.1")
    release.upgrade([])
    assert [call[0] for call in helm.calls] == ["list", "list", "upgrade"]
