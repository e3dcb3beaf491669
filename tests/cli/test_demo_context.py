"""The demo adds its context to the user's kubeconfig and restores the former context."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from kplane.cli.demo import context, run
from kplane.cli.demo.down import end_demo
from kplane.cli.errors import DemoFailed
from kplane.embedded.daemon import Daemon
from kplane.embedded.handle import Handle

OTHERS: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "work", "cluster": {"server": "https://work"}}],
    "users": [{"name": "work", "user": {"token": "secret"}}],
    "contexts": [{"name": name, "context": {"cluster": "work", "user": "work"}} for name in ("work", "other")],
    "current-context": "work",
}


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "home" / "config"
    path.parent.mkdir()
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


@pytest.fixture
def handle(tmp_path: Path) -> Handle:
    directory = tmp_path / "demo"
    directory.mkdir()
    admin = directory / "admin.kubeconfig"
    admin.write_text(
        yaml.safe_dump(
            {
                "clusters": [{"name": "any", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "any", "user": {"token": "admin"}}],
            }
        )
    )
    return Handle(
        directory=directory,
        pid=1,
        server="https://127.0.0.1:1",
        admin_kubeconfig=admin,
        operator_kubeconfig=admin,
        mcm_kubeconfig=admin,
        programs=(),
        kubectl_program=Path.home() / "programs" / "kubectl",
        tenants_etcd_endpoint=None,
        tenants_etcd_credentials=directory,
        operator_directory=directory,
        mcm_directory=directory,
        operator_url=None,
        mcm_url=None,
        seconds={},
    )


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    return document


def test_leave_restores_former_context(kubeconfig: Path, handle: Handle) -> None:
    kubeconfig.write_text(yaml.safe_dump(OTHERS))
    context.enter(handle)
    document = read(kubeconfig)
    assert document["current-context"] == context.CONTEXT
    assert {entry["name"] for entry in document["contexts"]} == {"work", "other", context.CONTEXT}
    context.leave(handle.directory)
    assert read(kubeconfig) == OTHERS


def test_leave_keeps_context_chosen_meanwhile(kubeconfig: Path, handle: Handle) -> None:
    kubeconfig.write_text(yaml.safe_dump(OTHERS))
    context.enter(handle)
    kubeconfig.write_text(yaml.safe_dump(read(kubeconfig) | {"current-context": "other"}))
    context.leave(handle.directory)
    assert read(kubeconfig)["current-context"] == "other"


def test_enter_and_leave_work_without_kubeconfig(kubeconfig: Path, handle: Handle) -> None:
    context.enter(handle)
    assert read(kubeconfig)["current-context"] == context.CONTEXT
    context.leave(handle.directory)
    assert read(kubeconfig)["contexts"] == []


def test_leave_does_not_select_deleted_former_context(kubeconfig: Path, handle: Handle) -> None:
    kubeconfig.write_text(yaml.safe_dump(OTHERS))
    context.enter(handle)
    document = read(kubeconfig)
    document["contexts"] = [entry for entry in document["contexts"] if entry["name"] != "work"]
    kubeconfig.write_text(yaml.safe_dump(document))
    context.leave(handle.directory)
    assert read(kubeconfig)["current-context"] == ""


def test_leave_without_context_keeps_kubeconfig_unchanged(kubeconfig: Path, tmp_path: Path) -> None:
    text = "# mine\n" + yaml.safe_dump(OTHERS)
    kubeconfig.write_text(text)
    context.leave(tmp_path)
    assert kubeconfig.read_text() == text


def test_second_leave_does_not_restore_context_again(kubeconfig: Path, handle: Handle) -> None:
    kubeconfig.write_text(yaml.safe_dump(OTHERS))
    context.enter(handle)
    context.leave(handle.directory)
    kubeconfig.write_text(yaml.safe_dump(read(kubeconfig) | {"current-context": ""}))
    context.leave(handle.directory)
    assert read(kubeconfig)["current-context"] == ""


def test_leave_keeps_context_of_other_demo(kubeconfig: Path, handle: Handle, tmp_path: Path) -> None:
    kubeconfig.write_text(yaml.safe_dump(OTHERS))
    context.enter(handle)
    (tmp_path / "second").mkdir()
    admin = tmp_path / "second" / "admin.kubeconfig"
    admin.write_text(handle.admin_kubeconfig.read_text().replace("127.0.0.1:1", "127.0.0.1:2"))
    second = replace(handle, directory=tmp_path / "second", server="https://127.0.0.1:2", admin_kubeconfig=admin)
    context.enter(second)
    context.leave(handle.directory)
    assert read(kubeconfig)["current-context"] == context.CONTEXT
    assert "https://127.0.0.1:2" in kubeconfig.read_text()
    context.leave(second.directory)
    assert context.CONTEXT not in kubeconfig.read_text()


@pytest.mark.parametrize("fails", [False, True])
def test_next_demo_restores_context_before_crashed_demo(
    kubeconfig: Path, handle: Handle, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A crashed demo leaves its context behind, and the next demo deletes the record of the former context."""
    contexts = []

    def step(directory: Path, **options: object) -> None:
        contexts.append(read(kubeconfig)["current-context"])
        context.enter(handle)
        if fails:
            raise DemoFailed("no")

    kubeconfig.write_text(yaml.safe_dump(OTHERS))
    context.enter(handle)
    (handle.directory / ".kplane-demo").touch()
    admin = handle.admin_kubeconfig.rename(kubeconfig.with_name("admin"))
    handle = replace(handle, admin_kubeconfig=admin)
    monkeypatch.setattr(run, "_run", step)
    monkeypatch.setattr("signal.signal", lambda *args: None)
    assert run.run_demo(handle.directory, clean=False, count=5) == fails
    assert contexts == ["work"]
    assert read(kubeconfig)["current-context"] == ("work" if fails else context.CONTEXT)


def test_demo_down_succeeds_if_kubeconfig_is_locked(
    kubeconfig: Path, handle: Handle, capsys: pytest.CaptureFixture[str]
) -> None:
    context.enter(handle)
    (handle.directory / ".kplane-demo").touch()
    kubeconfig.with_name("config.lock").touch()
    assert end_demo(handle.directory) == 0
    assert not handle.directory.exists()
    assert "remove it by `kubectl config delete-context kplane.demo`" in capsys.readouterr().out.replace("\n", " ")


def test_next_commands_use_paths_of_this_shell(handle: Handle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda program: f"/bin/{program}")
    look, connect, end = context.next_commands(handle, shown=("acme", "globex"), connect="acme", entered=True)
    assert look == "kubectl --context kplane.demo get controlplanes acme globex"
    assert connect == "kplane connect acme -- kubectl get namespaces"
    assert end.startswith(f"kplane demo-down --directory {handle.directory} ")

    monkeypatch.setattr("shutil.which", lambda program: None)
    monkeypatch.setattr("sys.executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.chdir(tmp_path)
    look, connect, _ = context.next_commands(handle, shown=("acme",), connect="acme", entered=True)
    assert look.startswith("~/programs/kubectl --context")
    assert connect.startswith(".venv/bin/kplane connect")


def test_next_commands_without_context_name_the_kubeconfig(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program: f"/bin/{program}")
    look, connect, _ = context.next_commands(handle, shown=("acme",), connect="acme", entered=False)
    assert look == f"kubectl --kubeconfig {handle.admin_kubeconfig} get controlplanes acme"
    assert connect == f"KUBECONFIG={handle.admin_kubeconfig} kplane connect acme -- kubectl get namespaces"


def test_verified_demo_keeps_running_if_kubeconfig_is_locked(
    kubeconfig: Path, handle: Handle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def verify(*args: object, **options: object) -> None:
        pass

    class Started(Daemon):
        def __init__(self, directory: Path, **options: object) -> None:
            pass

        def wait_ready(self, **options: object) -> Handle:
            return handle

    monkeypatch.setattr(run, "Daemon", Started)
    monkeypatch.setattr(run, "resolve", lambda **options: type("Found", (), {"directories": ()}))
    monkeypatch.setattr(run, "_verify", verify)
    monkeypatch.setattr("signal.signal", lambda *args: None)
    kubeconfig.with_name("config.lock").touch()
    directory = handle.directory.with_name("other")
    assert run.run_demo(directory, clean=False, count=5) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "failed to add context kplane.demo to your kubeconfig" in output
    assert f"--kubeconfig {handle.admin_kubeconfig} get controlplanes" in output
    assert "All processes have ended" not in output


def test_next_commands_omit_default_directory(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kplane.cli.demo.context.default_directory", lambda: handle.directory)
    assert "--directory" not in context.next_commands(handle, shown=("acme",), connect="acme", entered=True)[2]
