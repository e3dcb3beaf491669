"""The user's own kubeconfig keeps what others wrote, and kubectl gets credentials that are the current ones."""

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


def test_what_others_wrote_stays(own: Path) -> None:
    own_kubeconfig.add_context(entry("work"))
    own_kubeconfig.add_context(entry("kplane"))
    own_kubeconfig.add_context(made("acme"))
    own_kubeconfig.add_context(made("acme"))
    own_kubeconfig.add_context(made("globex", context="work"))
    held = yaml.safe_load(own.read_text())
    assert [each["name"] for each in held["contexts"]] == ["work", "kplane", "kplane-acme", "kplane-globex"]
    assert held["current-context"] == "kplane-globex"
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert os.listdir(own.parent) == ["config"]
    # With a management cluster, what asks it for credentials goes.
    own_kubeconfig.remove_context("kplane", is_own=lambda _: True)
    held = yaml.safe_load(own.read_text())
    assert [each["name"] for each in held["users"]] == ["work", "kplane-globex"]
    assert held["current-context"] == "kplane-globex"


def test_entries_of_a_former_version_are_renewed(own: Path) -> None:
    assert own_kubeconfig.renew_plugins() == []
    former = made("acme")
    plugin = former["users"][0]["user"]["exec"]
    plugin["args"] = ["-m", "kplane.cli.main", "credential", "acme", "--context", "work"]
    own_kubeconfig.add_context(entry("work"))
    # As a former version wrote it.
    held = yaml.safe_load(own.read_text())
    for section in ("clusters", "users", "contexts"):
        held[section] += former[section]
    own.write_text(yaml.safe_dump(held | {"current-context": "kplane-acme"}))
    assert management(None) == Management("work")
    assert own_kubeconfig.renew_plugins() == [own]
    renewed = yaml.safe_load(own.read_text())
    assert renewed["users"][0] == held["users"][0]
    assert renewed["users"][1]["user"]["exec"] == plugin | {
        "args": ["-E", "-P", "-m", "kplane.cli.credential", "acme", "--context", "work"]
    }
    assert renewed["current-context"] == "kplane-acme"
    assert management(None) == Management("work")
    assert own_kubeconfig.renew_plugins() == []


def test_a_link_stays_a_link_and_a_lock_is_respected(own: Path, tmp_path: Path) -> None:
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


def test_kubectl_asks_for_the_credential_of_the_present(own: Path) -> None:
    document = made("acme")
    assert "secret" not in kubeconfigs.to_text(document)
    plugin = document["users"][0]["user"]["exec"]
    assert plugin["command"] == sys.executable
    assert plugin["args"][-6:] == ["kplane.cli.credential", "acme", "--uid", "0-1", "--context", "kplane"]
    assert plugin["env"] == [{"name": "KUBECONFIG", "value": str(own)}]
    # As it is at the time: a later change of the current context must not matter.
    own_kubeconfig.add_context(entry("work"))
    assert made("acme", context=None)["users"][0]["user"]["exec"]["args"][-1] == "work"
    answer = json.loads(print_credential(ClusterConfig.from_kubeconfig(PUBLISHED), uid=None))
    assert answer["status"]["token"] == "secret"
    assert answer["status"]["expirationTimestamp"].endswith("Z")


def test_a_command_gets_a_private_file_that_goes_with_it(tmp_path: Path) -> None:
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


def test_the_context_of_a_control_plane_leads_to_its_management_cluster(own: Path) -> None:
    assert management(None) == Management()
    own_kubeconfig.add_context(entry("work"))
    assert management(None) == Management()
    own_kubeconfig.add_context(made("acme", context="work"))
    assert management(None) == Management("work")
    assert management("other") == Management("other")
    # What is merged from there leads to the management cluster too.
    assert made("globex", context=None)["users"][0]["user"]["exec"]["args"][-1] == "work"
    assert own_kubeconfig.choose_context("kplane-work", "work") == "work"
    assert management(None) == Management()
    assert yaml.safe_load(own.read_text())["current-context"] == "work"
    with pytest.raises(Refused, match="has no context kplane-globex or globex"):
        own_kubeconfig.choose_context("kplane-globex", "globex")


def test_what_is_connected_leads_to_the_kubeconfig_of_its_management_cluster(
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
    found = management(None)
    config = ClusterConfig.default(context=found.context, environment=found.environment)
    assert config.server == "https://10.0.0.1:6443"
    # A kubeconfig that is made there leads to the same one.
    plugin = made("globex", context=None)["users"][0]["user"]["exec"]
    assert plugin["args"][-2:] == ["--context", "work"]
    assert plugin["env"] == [{"name": "KUBECONFIG", "value": str(own)}]
    # It was moved: only this one is left.
    own.unlink()
    assert management(None) == Management("work")
