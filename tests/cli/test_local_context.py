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
    """A management cluster as its handle tells of it."""

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
    return {each["name"]: each["cluster"]["server"] for each in yaml.safe_load(path.read_text())["clusters"]}


def test_second_up_keeps_context_of_first(tmp_path: Path, own: Path) -> None:
    own_kubeconfig.add_context(entry("work"))
    with contextlib.ExitStack() as held:
        first, second = (Running(tmp_path / name, port=port, held=held) for name, port in (("a", 1), ("b", 2)))
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
    with contextlib.ExitStack() as held:
        first, second = (Running(tmp_path / name, port=port, held=held) for name, port in (("a", 1), ("b", 2)))
        first.enter()
        if merges:
            own_kubeconfig.add_context(made("acme"))
        second.enter()
        first.leave()
        assert kubeconfigs.current_context() == "kplane.b"
        second.leave()
    assert kubeconfigs.current_context() == "work"


def test_up_that_was_killed_has_noted_the_former_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_kubeconfig.add_context(entry("work"))

    def add_and_die(*args: Any, **options: Any) -> None:
        own_kubeconfig.add_context(*args, **options)
        raise KeyboardInterrupt

    with contextlib.ExitStack() as held:
        first = Running(tmp_path / "a", port=1, held=held)
        with monkeypatch.context() as patch:
            patch.setattr("kplane.cli.local_context.add_context", add_and_die)
            with pytest.raises(KeyboardInterrupt):
                first.enter()
        first.enter()
        first.leave()
    assert kubeconfigs.current_context() == "work"


def test_context_that_was_chosen_meanwhile_stays(tmp_path: Path) -> None:
    own_kubeconfig.add_context(entry("work"))
    own_kubeconfig.add_context(entry("other"))
    with contextlib.ExitStack() as held:
        first = Running(tmp_path / "a", port=1, held=held)
        first.enter()
        own_kubeconfig.choose_context("work")
        first.leave()
    assert kubeconfigs.current_context() == "work"


def test_context_kplane_of_a_person_stays(tmp_path: Path, own: Path) -> None:
    own_kubeconfig.add_context(entry("kplane"))
    with contextlib.ExitStack() as held:
        first = Running(tmp_path / "a", port=1, held=held)
        assert first.enter() == "kplane.a"
        first.leave()
    assert list(servers(own)) == ["kplane"]
    assert kubeconfigs.current_context() == "kplane"


def test_context_of_crashed_cluster_is_kept_for_its_next_up(tmp_path: Path, own: Path) -> None:
    with contextlib.ExitStack() as held:
        first = Running(tmp_path / "a", port=1, held=held)
        first.enter()
    with contextlib.ExitStack() as held:
        assert Running(tmp_path / "b", port=2, held=held).enter() == "kplane.b"
    assert first.enter() == "kplane"
    assert servers(own) == {"kplane": "https://127.0.0.1:1", "kplane.b": "https://127.0.0.1:2"}


def test_context_of_deleted_directory_is_taken_without_its_control_planes(tmp_path: Path, own: Path) -> None:
    with contextlib.ExitStack() as held:
        Running(tmp_path / "a", port=1, held=held).enter()
        own_kubeconfig.add_context(made("acme"))
    shutil.rmtree(tmp_path / "a")
    with contextlib.ExitStack() as held:
        assert Running(tmp_path / "b", port=2, held=held).enter() == "kplane"
    assert servers(own) == {"kplane": "https://127.0.0.1:2"}


def test_context_of_former_version_is_known_by_its_authority(tmp_path: Path, own: Path) -> None:
    former = entry("kplane")
    former["clusters"][0]["cluster"] = {"server": "https://127.0.0.1:9", "certificate-authority-data": "1"}
    own_kubeconfig.add_context(former)
    with contextlib.ExitStack() as held:
        first = Running(tmp_path / "a", port=1, held=held)
        assert first.enter() == "kplane"
        assert servers(own) == {"kplane": first.server}


def test_context_of_former_version_goes_with_its_cluster(tmp_path: Path, own: Path) -> None:
    former = entry("kplane")
    former["clusters"][0]["cluster"] = {"server": "https://127.0.0.1:1"}
    own_kubeconfig.add_context(former)
    with contextlib.ExitStack() as held:
        Running(tmp_path / "a", port=1, held=held).leave()
    assert servers(own) == {}


@pytest.mark.parametrize("what", ["kubeconfig", "directory"])
def test_up_without_right_to_write_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
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


def test_entries_of_a_person_beside_context_stay(tmp_path: Path, own: Path) -> None:
    person = entry("kplane")
    person["contexts"][0]["name"] = person["current-context"] = "work"
    own_kubeconfig.add_context(person)
    with contextlib.ExitStack() as held:
        first = Running(tmp_path / "a", port=1, held=held)
        # Cluster and user `kplane` are a person's, though no context is.
        assert first.enter() == "kplane.a"
        mine = entry("mine")
        mine["contexts"][0]["context"]["cluster"] = "kplane.a"
        own_kubeconfig.add_context(mine)
        # A context of a person that leads to this management cluster is not its own.
        assert first.enter() == "kplane.a"
        first.leave()
    assert [each["name"] for each in yaml.safe_load(own.read_text())["contexts"]] == ["work", "mine"]
    assert "kplane" in servers(own)
