"""The user's kubeconfig keeps foreign entries, and kubectl gets current credentials."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kplane.cli import kubeconfigs, own_kubeconfig
from kplane.cli.errors import Refused
from kplane.cli.exec_plugin import print_credential
from kplane.cli.kubeconfigs import Management, management
from kplane.provider import ClusterConfig

PUBLISHED = yaml.safe_dump(
    {
        "clusters": [{"name": "x", "cluster": {"server": "https://api.example.org/clusters/acme/control-plane"}}],
        "users": [{"name": "x", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "current-context": "x",
    }
)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / ".kube" / "config"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return path


def entry(name: str, user: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {
        "clusters": [{"name": name, "cluster": {"server": "https://10.0.0.1:6443"}}],
        "users": [{"name": name, "user": user or {"token": "other"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def made(name: str, *, context: str | None = "kplane") -> dict[str, Any]:
    return kubeconfigs.with_exec_credential(PUBLISHED, name=name, uid="0-1", context=context, internal=False)


def test_add_and_remove_context_keep_foreign_entries(own: Path) -> None:
    own_kubeconfig.add_context(entry("work"))
    own_kubeconfig.add_context(entry("kplane"))
    own_kubeconfig.add_context(made("acme"))
    own_kubeconfig.add_context(made("acme"))
    own_kubeconfig.add_context(made("globex", context="work"))
    document = yaml.safe_load(own.read_text())
    assert [item["name"] for item in document["contexts"]] == ["work", "kplane", "kplane-acme", "kplane-globex"]
    assert document["current-context"] == "kplane-globex"
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert os.listdir(own.parent) == ["config"]
    # The removal of a management context also removes the contexts with credentials from that cluster.
    own_kubeconfig.remove_context("kplane", is_own=lambda _: True)
    document = yaml.safe_load(own.read_text())
    assert [item["name"] for item in document["users"]] == ["work", "kplane-globex"]
    assert document["current-context"] == "kplane-globex"


def test_renew_plugins_updates_entries_of_old_version(own: Path) -> None:
    assert own_kubeconfig.renew_plugins() == []
    old_entry = made("acme")
    plugin = old_entry["users"][0]["user"]["exec"]
    plugin["args"] = ["-m", "kplane.cli.main", "credential", "acme", "--context", "work"]
    own_kubeconfig.add_context(entry("work"))
    # The state that an old version wrote.
    document = yaml.safe_load(own.read_text())
    for section in ("clusters", "users", "contexts"):
        document[section] += old_entry[section]
    own.write_text(yaml.safe_dump(document | {"current-context": "kplane-acme"}))
    assert management(None) == Management("work")
    assert own_kubeconfig.renew_plugins() == [own]
    renewed = yaml.safe_load(own.read_text())
    assert renewed["users"][0] == document["users"][0]
    assert renewed["users"][1]["user"]["exec"] == plugin | {
        "args": ["-E", "-P", "-m", "kplane.cli.credential", "acme", "--context", "work"]
    }
    assert renewed["current-context"] == "kplane-acme"
    assert management(None) == Management("work")
    assert own_kubeconfig.renew_plugins() == []


def test_add_context_keeps_symlink_and_respects_lock(own: Path, tmp_path: Path) -> None:
    own.parent.mkdir()
    real = tmp_path / "real"
    real.write_text(yaml.safe_dump(entry("work")))
    own.symlink_to(real)
    own_kubeconfig.add_context(entry("kplane"))
    assert own.is_symlink()
    assert len(yaml.safe_load(real.read_text())["contexts"]) == 2
    (own.parent / "config.lock").touch()
    with pytest.raises(Refused, match="is being changed by another program"):
        own_kubeconfig.add_context(entry("more"))


def test_kubeconfig_has_exec_plugin_instead_of_token(own: Path) -> None:
    document = made("acme")
    assert "secret" not in kubeconfigs.to_text(document)
    plugin = document["users"][0]["user"]["exec"]
    assert plugin["command"] == sys.executable
    assert plugin["args"][-6:] == ["kplane.cli.credential", "acme", "--uid", "0-1", "--context", "kplane"]
    assert plugin["env"] == [{"name": "KUBECONFIG", "value": str(own)}]
    # The plugin keeps the context of its creation. A later change of the current context has no effect.
    own_kubeconfig.add_context(entry("work"))
    assert made("acme", context=None)["users"][0]["user"]["exec"]["args"][-1] == "work"
    answer = json.loads(print_credential(ClusterConfig.from_kubeconfig(PUBLISHED), uid=None))
    assert answer["status"]["token"] == "secret"
    assert answer["status"]["expirationTimestamp"].endswith("Z")


def test_run_with_gives_command_a_private_temporary_kubeconfig(tmp_path: Path) -> None:
    script = (
        "import os, stat, sys\n"
        "path = os.environ['KUBECONFIG']\n"
        "seen = f'{path} {stat.S_IMODE(os.stat(path).st_mode):o} {open(path).read()}'\n"
        "open(sys.argv[1], 'w').write(seen)\n"
        "sys.exit(7)\n"
    )
    assert kubeconfigs.run_with("a: b", [sys.executable, "-c", script, str(tmp_path / "seen")]) == 7
    path, mode, content = (tmp_path / "seen").read_text().split(" ", 2)
    assert (mode, content) == ("600", "a: b")
    assert not Path(path).exists()


def test_control_plane_context_leads_to_its_management_cluster(own: Path) -> None:
    assert management(None) == Management()
    own_kubeconfig.add_context(entry("work"))
    assert management(None) == Management()
    own_kubeconfig.add_context(made("acme", context="work"))
    assert management(None) == Management("work")
    assert management("other") == Management("other")
    # A kubeconfig merged in this context also leads to the management cluster.
    assert made("globex", context=None)["users"][0]["user"]["exec"]["args"][-1] == "work"
    assert own_kubeconfig.choose_context("kplane-work", "work") == "work"
    assert management(None) == Management()
    assert yaml.safe_load(own.read_text())["current-context"] == "work"
    with pytest.raises(Refused, match="has no context kplane-globex or globex"):
        own_kubeconfig.choose_context("kplane-globex", "globex")


def test_connected_command_uses_kubeconfig_of_management_cluster(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_kubeconfig.add_context(entry("work"))
    connected = tmp_path / "connected"
    connected.write_text(kubeconfigs.to_text(made("acme", context="work")))
    own_kubeconfig.add_context(entry("other"))
    monkeypatch.setenv("KUBECONFIG", str(connected))
    assert management(None) == Management("work", str(own))
    assert management("other") == Management("other", str(own))
    assert management("kplane-acme") == Management("kplane-acme")
    target = management(None)
    config = ClusterConfig.default(context=target.context, environment=target.environment)
    assert config.server == "https://10.0.0.1:6443"
    # A kubeconfig that the connected command creates names the same kubeconfig.
    plugin = made("globex", context=None)["users"][0]["user"]["exec"]
    assert plugin["args"][-2:] == ["--context", "work"]
    assert plugin["env"] == [{"name": "KUBECONFIG", "value": str(own)}]
    # The user's kubeconfig was moved, so only the connected kubeconfig remains.
    own.unlink()
    assert management(None) == Management("work")
