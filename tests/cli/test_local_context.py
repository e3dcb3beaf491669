"""Each `kplane up` has a context of its own, and `kplane down` removes no other."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from kplane.cli import kubeconfigs, own_kubeconfig
from kplane.cli.errors import Refused
from kplane.cli.local import start_local
from kplane.cli.local_context import enter_local, leave_local
from kplane.embedded import lock
from kplane.embedded.handle import Handle

from .test_kubeconfigs import entry, made


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


class Running:
    """Stand-in for the handle of a running management cluster."""

    def __init__(self, directory: Path, *, port: int, held: contextlib.ExitStack) -> None:
        directory.mkdir()
        self.directory, self.server = directory, f"https://127.0.0.1:{port}"
        self.admin_kubeconfig = directory / "admin"
        document = entry("admin")
        document["clusters"][0]["cluster"] = {"server": self.server, "certificate-authority-data": f"{port}"}
        self.admin_kubeconfig.write_text(yaml.safe_dump(document))
        held.enter_context(lock.hold(directory))

    def enter(self) -> str:
        return enter_local(cast("Handle", self))[0]

    def leave(self) -> None:
        leave_local(self.directory, server=self.server)


def servers(path: Path) -> dict[str, str]:
    return {cluster["name"]: cluster["cluster"]["server"] for cluster in yaml.safe_load(path.read_text())["clusters"]}


def test_second_up_keeps_context_of_first(tmp_path: Path, own: Path) -> None:
    own_kubeconfig.add_context(entry("work"))
    with contextlib.ExitStack() as locks:
        first, second = (Running(tmp_path / name, port=port, held=locks) for name, port in (("a", 1), ("b", 2)))
        assert first.enter() == "kplane"
        assert second.enter() == "kplane.b"
        assert second.enter() == "kplane.b"
        assert servers(own) | {"work": ""} == {"work": "", "kplane": first.server, "kplane.b": second.server}
        assert kubeconfigs.current_context() == "kplane.b"
        second.leave()
        assert servers(own)["kplane"] == first.server
        assert kubeconfigs.current_context() == "kplane"
        first.leave()
        assert list(servers(own)) == ["work"]
        assert kubeconfigs.current_context() == "work"


@pytest.mark.parametrize("merges", [False, True])
def test_context_before_two_ups_is_current_after_both_downs(tmp_path: Path, merges: bool) -> None:
    own_kubeconfig.add_context(entry("work"))
    with contextlib.ExitStack() as locks:
        first, second = (Running(tmp_path / name, port=port, held=locks) for name, port in (("a", 1), ("b", 2)))
        first.enter()
        if merges:
            own_kubeconfig.add_context(made("acme"))
        second.enter()
        first.leave()
        assert kubeconfigs.current_context() == "kplane.b"
        second.leave()
    assert kubeconfigs.current_context() == "work"


def test_killed_up_preserves_former_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_kubeconfig.add_context(entry("work"))

    def add_and_die(*args: Any, **options: Any) -> None:
        own_kubeconfig.add_context(*args, **options)
        raise KeyboardInterrupt

    with contextlib.ExitStack() as locks:
        first = Running(tmp_path / "a", port=1, held=locks)
        with monkeypatch.context() as patch:
            patch.setattr("kplane.cli.local_context.add_context", add_and_die)
            with pytest.raises(KeyboardInterrupt):
                first.enter()
        first.enter()
        first.leave()
    assert kubeconfigs.current_context() == "work"


def test_leave_keeps_context_chosen_meanwhile(tmp_path: Path) -> None:
    own_kubeconfig.add_context(entry("work"))
    own_kubeconfig.add_context(entry("other"))
    with contextlib.ExitStack() as locks:
        first = Running(tmp_path / "a", port=1, held=locks)
        first.enter()
        own_kubeconfig.choose_context("work")
        first.leave()
    assert kubeconfigs.current_context() == "work"


def test_user_context_named_kplane_is_kept(tmp_path: Path, own: Path) -> None:
    own_kubeconfig.add_context(entry("kplane"))
    with contextlib.ExitStack() as locks:
        first = Running(tmp_path / "a", port=1, held=locks)
        assert first.enter() == "kplane.a"
        first.leave()
    assert list(servers(own)) == ["kplane"]
    assert kubeconfigs.current_context() == "kplane"


def test_context_of_crashed_cluster_is_kept_for_its_next_up(tmp_path: Path, own: Path) -> None:
    with contextlib.ExitStack() as locks:
        first = Running(tmp_path / "a", port=1, held=locks)
        first.enter()
    with contextlib.ExitStack() as locks:
        assert Running(tmp_path / "b", port=2, held=locks).enter() == "kplane.b"
    assert first.enter() == "kplane"
    assert servers(own) == {"kplane": "https://127.0.0.1:1", "kplane.b": "https://127.0.0.1:2"}


def test_context_of_deleted_directory_is_reused_without_tenants(tmp_path: Path, own: Path) -> None:
    with contextlib.ExitStack() as locks:
        Running(tmp_path / "a", port=1, held=locks).enter()
        own_kubeconfig.add_context(made("acme"))
    shutil.rmtree(tmp_path / "a")
    with contextlib.ExitStack() as locks:
        assert Running(tmp_path / "b", port=2, held=locks).enter() == "kplane"
    assert servers(own) == {"kplane": "https://127.0.0.1:2"}


def test_context_of_old_version_is_recognized_by_its_authority(tmp_path: Path, own: Path) -> None:
    old_entry = entry("kplane")
    old_entry["clusters"][0]["cluster"] = {"server": "https://127.0.0.1:9", "certificate-authority-data": "1"}
    own_kubeconfig.add_context(old_entry)
    with contextlib.ExitStack() as locks:
        first = Running(tmp_path / "a", port=1, held=locks)
        assert first.enter() == "kplane"
        assert servers(own) == {"kplane": first.server}


def test_leave_removes_context_of_old_version(tmp_path: Path, own: Path) -> None:
    old_entry = entry("kplane")
    old_entry["clusters"][0]["cluster"] = {"server": "https://127.0.0.1:1"}
    own_kubeconfig.add_context(old_entry)
    with contextlib.ExitStack() as locks:
        Running(tmp_path / "a", port=1, held=locks).leave()
    assert servers(own) == {}


@pytest.mark.parametrize("what", ["kubeconfig", "directory"])
def test_up_is_refused_if_kubeconfig_or_directory_is_unwritable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("it was started")

    monkeypatch.setattr("kplane.cli.local.Daemon", refuse)
    monkeypatch.setattr("kplane.cli.local.resolve", refuse)
    (tmp_path / "file").touch()
    if what == "kubeconfig":
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "file" / "config"))
    directory = tmp_path / ("file" if what == "directory" else "a") / "local"
    with pytest.raises(Refused, match=f"failed to .*{what} .*; (set KUBECONFIG|choose one that you can write)"):
        start_local(directory, report=lambda _: None)


def test_user_entries_beside_context_are_kept(tmp_path: Path, own: Path) -> None:
    person = entry("kplane")
    person["contexts"][0]["name"] = person["current-context"] = "work"
    own_kubeconfig.add_context(person)
    with contextlib.ExitStack() as locks:
        first = Running(tmp_path / "a", port=1, held=locks)
        # Cluster and user `kplane` belong to the user, without a context of that name.
        assert first.enter() == "kplane.a"
        user_entry = entry("mine")
        user_entry["contexts"][0]["context"]["cluster"] = "kplane.a"
        own_kubeconfig.add_context(user_entry)
        # A user's context of this management cluster is not a context of kplane.
        assert first.enter() == "kplane.a"
        first.leave()
    assert [context["name"] for context in yaml.safe_load(own.read_text())["contexts"]] == ["work", "mine"]
    assert "kplane" in servers(own)
