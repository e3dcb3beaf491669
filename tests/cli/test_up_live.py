"""`kplane up` and `kplane down` with real processes."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kplane.binaries.programs import Binaries
from kplane.embedded.daemon import end
from kplane.workloads import find_processes

from .typed import Kplane, own_environment

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("binaries")]


@pytest.fixture
def home() -> Iterator[Path]:
    # The path is short: sockets lie below this directory.
    path = Path(tempfile.mkdtemp(prefix="kplane-up-"))
    yield path
    end(path / "local")
    shutil.rmtree(path)


# A whole management cluster starts twice.
@pytest.mark.slow
def test_up_and_down_keep_data_until_purge(home: Path, binaries: Binaries) -> None:
    kplane = Kplane(own_environment(home) | {"PATH": f"{own_environment(home)['PATH']}:{binaries.kubernetes}"})
    directory, config = home / "local", home / "config"
    document = {"apiVersion": "v1", "kind": "Config", "current-context": "work", "clusters": [], "users": []}
    config.write_text(
        yaml.safe_dump(document | {"contexts": [{"name": "work", "context": {"cluster": "", "user": ""}}]})
    )
    at = ("--directory", str(directory))

    first = kplane("up", *at, timeout=300)
    assert first.stdout == "kplane\n"
    assert "context kplane is in" in first.stderr
    kubeconfig = yaml.safe_load(config.read_text())
    assert [item["name"] for item in kubeconfig["contexts"]] == ["work", "kplane"]
    assert kubeconfig["current-context"] == "kplane"
    assert "runs already" in kplane("up", *at).stderr

    kplane("create", "acme")
    result = kplane("connect", "acme", "--", "kubectl", "create", "namespace", "kept", "-o", "name")
    assert result.stdout == "namespace/kept\n"
    # The gateway counts requests. Commands find local processes without an option.
    row = next(line for line in kplane("top").stdout.splitlines() if line.startswith("acme "))
    assert int(row.split()[-1]) > 0
    assert kplane("logs", "acme", "--tail", "1").stdout
    findings = json.loads(kplane("doctor", "-o", "json").stdout)["findings"]
    assert [item for item in findings if item["check"] not in {"open-files", "inotify"}] == []

    assert "the data stay" in kplane("down", *at).stderr
    assert find_processes(directory) == []
    assert [item["name"] for item in yaml.safe_load(config.read_text())["contexts"]] == ["work"]

    kplane("up", *at, timeout=300)
    result = kplane("connect", "acme", "--", "kubectl", "get", "namespace", "kept", "-o", "name")
    assert result.stdout == "namespace/kept\n"
    assert "all data deleted" in kplane("down", "--purge", *at).stderr
    assert not directory.exists()
    assert find_processes(directory) == []
    assert "nothing runs" in kplane("down", *at).stderr


def test_up_and_down_refuse_directory_with_foreign_files(home: Path) -> None:
    kplane = Kplane(own_environment(home))
    (home / "local").mkdir()
    (home / "local" / "precious").write_text("mine")
    assert "did not write" in kplane("up", "--directory", str(home / "local"), code=1).stderr
    assert "did not write" in kplane("down", "--purge", "--directory", str(home / "local"), code=1).stderr
    assert (home / "local" / "precious").read_text() == "mine"
