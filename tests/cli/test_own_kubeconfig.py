"""A kubeconfig of several files: entries of the user are kept, and stale entries of kplane are removed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kplane.cli import kubeconfigs, own_kubeconfig
from kplane.cli.errors import Refused

from .test_kubeconfigs import PUBLISHED, entry


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two files of KUBECONFIG, which do not exist."""
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setenv("KUBECONFIG", f"{first}{os.pathsep}{second}")
    return first, second


def write(path: Path, *names: str, current: str = "") -> None:
    documents = [entry(name) for name in names]
    sections = {
        section: [item for document in documents for item in document[section]]
        for section in ("clusters", "users", "contexts")
    }
    path.write_text(yaml.safe_dump(sections | {"current-context": current}))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def names(path: Path, section: str = "contexts") -> list[str]:
    return [item["name"] for item in read(path)[section]]


def made(name: str, *, uid: str | None = "0-1", context: str = "kplane") -> dict[str, Any]:
    return kubeconfigs.with_exec_credential(PUBLISHED, name=name, uid=uid, context=context, internal=False)


@pytest.mark.parametrize("place", [0, 1])
def test_add_context_refuses_to_replace_or_hide_user_context(files: tuple[Path, Path], place: int) -> None:
    write(files[0], "kplane")
    write(files[place], "kplane", "kplane-acme")
    before = [path.read_text() for path in files if path.exists()]
    with pytest.raises(Refused, match=f"{shlex.quote(str(files[place]))} has an entry kplane-acme .*rename-context"):
        own_kubeconfig.add_context(made("acme"))
    assert [path.read_text() for path in files if path.exists()] == before


def test_context_of_kplane_is_replaced_in_its_file(files: tuple[Path, Path]) -> None:
    write(files[0], "work", current="work")
    files[1].write_text(yaml.safe_dump(made("acme", uid="0-0")))
    added = own_kubeconfig.add_context(made("acme", uid="0-1"))
    assert (added.path, added.former) == (files[1], "work")
    assert names(files[0]) == ["work"]
    assert "0-1" in read(files[1])["users"][0]["user"]["exec"]["args"]
    # kubectl takes the first current context that it finds.
    assert kubeconfigs.current_context() == "kplane-acme"
    assert own_kubeconfig.add_context(made("acme")).former is None
    assert own_kubeconfig.add_context(made("acme")).replaced is None
    assert own_kubeconfig.add_context(made("acme", context="other")).replaced == "kplane"


@pytest.mark.parametrize("uid", ["0-1", None])
def test_remove_control_plane_removes_its_contexts(files: tuple[Path, Path], uid: str | None) -> None:
    write(files[0], "kplane", current="kplane")
    files[1].write_text(yaml.safe_dump(made("acme", uid=uid)))
    own_kubeconfig.choose_context("kplane-acme")
    assert own_kubeconfig.remove_control_plane("acme", uid="0-1", context="kplane") == ["kplane-acme"]
    assert kubeconfigs.current_context() == "kplane"
    assert names(files[0]) == ["kplane"]
    assert [names(files[1], section) for section in ("clusters", "contexts", "users")] == [[], [], []]
    assert own_kubeconfig.remove_control_plane("acme", uid="0-1", context="kplane") == []


def test_remove_control_plane_keeps_contexts_of_others(files: tuple[Path, Path]) -> None:
    write(files[0], "kplane-acme", current="kplane-acme")
    files[1].write_text(yaml.safe_dump(made("globex", uid="0-2")))
    before = [path.read_text() for path in files]
    assert own_kubeconfig.remove_control_plane("acme", uid="0-1", context="kplane") == []
    # Another control plane of the name, in another management cluster.
    assert own_kubeconfig.remove_control_plane("globex", uid="0-3", context="work") == []
    assert [path.read_text() for path in files] == before


def test_remove_control_plane_removes_renamed_context(files: tuple[Path, Path]) -> None:
    write(files[0], "kplane")
    document = made("acme")
    document["contexts"][0]["name"] = document["current-context"] = "production"
    files[1].write_text(yaml.safe_dump(document))
    assert own_kubeconfig.remove_control_plane("acme", uid="0-1", context="kplane") == ["production"]
    assert kubeconfigs.current_context() == "kplane"
    assert [names(files[1], section) for section in ("clusters", "contexts", "users")] == [[], [], []]


def test_remove_control_plane_keeps_user_context_of_same_name(files: tuple[Path, Path]) -> None:
    write(files[0], "kplane-acme", current="kplane-acme")
    files[1].write_text(yaml.safe_dump(made("acme")))
    before = files[0].read_text()
    own_kubeconfig.remove_control_plane("acme", uid="0-1", context="kplane")
    assert files[0].read_text() == before
    assert names(files[1]) == []


def test_current_context_is_unset_if_management_context_is_gone(files: tuple[Path, Path]) -> None:
    own_kubeconfig.add_context(made("acme", context="gone"))
    own_kubeconfig.remove_control_plane("acme", uid="0-1", context="gone")
    assert kubeconfigs.current_context() is None
    assert names(files[0]) == []


def test_context_in_second_file_is_found(files: tuple[Path, Path]) -> None:
    write(files[0], "work")
    write(files[1], "kplane")
    assert own_kubeconfig.server_of("kplane") == "https://10.0.0.1:6443"
    own_kubeconfig.use_context("kplane")
    assert kubeconfigs.current_context() == "kplane"
    own_kubeconfig.remove_context("kplane", is_own=lambda _: True)
    assert names(files[1]) == []
    assert kubeconfigs.current_context() is None


def is_first(cluster: Mapping[str, Any]) -> bool:
    return cluster["server"] == "https://first"


def test_remove_context_keeps_user_entries_of_same_name(files: tuple[Path, Path]) -> None:
    own, acme = entry("kplane"), made("acme")
    own["clusters"][0]["cluster"]["server"] = "https://first"
    # The plugin of another program. Its arguments end like the arguments of kplane's plugin.
    other = entry("other", {"exec": {"command": "aws", "args": ["get-token", "--context", "kplane"]}})
    sections = {section: own[section] + acme[section] + other[section] for section in ("clusters", "users", "contexts")}
    files[0].write_text(yaml.safe_dump(sections | {"current-context": "kplane"}))
    write(files[1], "kplane", "kplane-acme")
    before = files[1].read_text()
    own_kubeconfig.remove_context("kplane", is_own=is_first)
    assert files[1].read_text() == before
    assert [names(files[0], section) for section in ("clusters", "contexts", "users")] == [["other"]] * 3


def test_remove_context_removes_renamed_contexts_of_its_cluster(files: tuple[Path, Path]) -> None:
    own, acme = entry("kplane"), made("acme")
    own["clusters"][0]["cluster"]["server"] = "https://first"
    own["contexts"][0]["name"], acme["contexts"][0]["name"] = "laptop", "mine"
    sections = {section: own[section] + acme[section] for section in ("clusters", "users", "contexts")}
    files[0].write_text(yaml.safe_dump(sections | {"current-context": "mine"}))
    own_kubeconfig.remove_context("kplane", is_own=is_first)
    assert [names(files[0], section) for section in ("clusters", "contexts", "users")] == [[]] * 3
    assert kubeconfigs.current_context() is None


def test_renew_plugins_updates_old_entries_in_each_file(files: tuple[Path, Path]) -> None:
    for path, name in zip(files, ("acme", "globex"), strict=True):
        document = made(name)
        arguments = ["-m", "kplane.cli.main", "credential", name, "--context", "kplane"]
        document["users"][0]["user"]["exec"]["args"] = arguments
        path.write_text(yaml.safe_dump(document))
    assert own_kubeconfig.renew_plugins() == list(files)
    assert [read(path)["users"][0]["user"]["exec"]["args"][:2] for path in files] == [["-E", "-P"]] * 2
    assert own_kubeconfig.renew_plugins() == []


def test_unwritable_kubeconfig_is_refused_with_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "file" / "config"))
    refusal = r"failed to write kubeconfig .*/config: .*; set KUBECONFIG to a file that you can write"
    with pytest.raises(Refused, match=refusal):
        own_kubeconfig.check_writable()
    with pytest.raises(Refused, match=refusal):
        own_kubeconfig.add_context(entry("work"))
