"""The demo's context comes into the user's kubeconfig, and leaves it as it was."""

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
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def test_the_former_context_is_current_again_afterwards(kubeconfig: Path, handle: Handle) -> None:
    kubeconfig.write_text(yaml.safe_dump(OTHERS))
    context.enter(handle)
    held = read(kubeconfig)
    assert held["current-context"] == context.CONTEXT
    assert {each["name"] for each in held["contexts"]} == {"work", "other", context.CONTEXT}
    context.leave(handle.directory)
    assert read(kubeconfig) == OTHERS


def test_a_context_that_was_chosen_meanwhile_stays(kubeconfig: Path, handle: Handle) -> None:
    kubeconfig.write_text(yaml.safe_dump(OTHERS))
    context.enter(handle)
    kubeconfig.write_text(yaml.safe_dump(read(kubeconfig) | {"current-context": "other"}))
    context.leave(handle.directory)
    assert read(kubeconfig)["current-context"] == "other"


def test_works_without_a_kubeconfig(kubeconfig: Path, handle: Handle) -> None:
    context.enter(handle)
    assert read(kubeconfig)["current-context"] == context.CONTEXT
    context.leave(handle.directory)
    assert read(kubeconfig)["contexts"] == []


def test_a_former_context_that_is_gone_is_not_chosen(kubeconfig: Path, handle: Handle) -> None:
    kubeconfig.write_text(yaml.safe_dump(OTHERS))
    context.enter(handle)
    held = read(kubeconfig)
    held["contexts"] = [each for each in held["contexts"] if each["name"] != "work"]
    kubeconfig.write_text(yaml.safe_dump(held))
    context.leave(handle.directory)
    assert read(kubeconfig)["current-context"] == ""


def test_a_demo_without_a_context_leaves_the_kubeconfig_alone(kubeconfig: Path, tmp_path: Path) -> None:
    text = "# mine\n" + yaml.safe_dump(OTHERS)
    kubeconfig.write_text(text)
    context.leave(tmp_path)
    assert kubeconfig.read_text() == text


def test_leaving_twice_is_leaving_once(kubeconfig: Path, handle: Handle) -> None:
    kubeconfig.write_text(yaml.safe_dump(OTHERS))
    context.enter(handle)
    context.leave(handle.directory)
    kubeconfig.write_text(yaml.safe_dump(read(kubeconfig) | {"current-context": ""}))
    context.leave(handle.directory)
    assert read(kubeconfig)["current-context"] == ""


def test_the_context_of_a_demo_elsewhere_stays(kubeconfig: Path, handle: Handle, tmp_path: Path) -> None:
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
def test_the_next_demo_or_its_failure_gives_the_former_context_back(
    kubeconfig: Path, handle: Handle, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A demo that crashed has not left its context, and the next one deletes what it remembers."""
    seen = []

    def step(directory: Path, **options: object) -> None:
        seen.append(read(kubeconfig)["current-context"])
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
    assert seen == ["work"]
    assert read(kubeconfig)["current-context"] == ("work" if fails else context.CONTEXT)


def test_a_kubeconfig_that_cannot_be_changed_keeps_no_demo_running(
    kubeconfig: Path, handle: Handle, capsys: pytest.CaptureFixture[str]
) -> None:
    context.enter(handle)
    (handle.directory / ".kplane-demo").touch()
    kubeconfig.with_name("config.lock").touch()
    assert end_demo(handle.directory) == 0
    assert not handle.directory.exists()
    assert "remove it by `kubectl config delete-context kplane.demo`" in capsys.readouterr().out.replace("\n", " ")


def test_the_next_commands_work_in_this_shell(handle: Handle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


def test_the_next_commands_work_without_the_context(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program: f"/bin/{program}")
    look, connect, _ = context.next_commands(handle, shown=("acme",), connect="acme", entered=False)
    assert look == f"kubectl --kubeconfig {handle.admin_kubeconfig} get controlplanes acme"
    assert connect == f"KUBECONFIG={handle.admin_kubeconfig} kplane connect acme -- kubectl get namespaces"


def test_a_kubeconfig_that_cannot_be_changed_ends_no_verified_demo(
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


def test_the_default_directory_needs_no_flag(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kplane.cli.demo.context.default_directory", lambda: handle.directory)
    assert "--directory" not in context.next_commands(handle, shown=("acme",), connect="acme", entered=True)[2]
