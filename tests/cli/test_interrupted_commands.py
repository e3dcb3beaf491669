"""Messages and exit codes of commands that are interrupted or do not find their object."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from kplane.api import ControlPlane
from kplane.cli import kubeconfigs, own_kubeconfig
from kplane.cli.commands.control_planes import _consequences
from kplane.cli.errors import ExitCode
from kplane.cli.main import app
from kplane.cli.session import run
from kplane.client import ControlPlanes, NoControlPlane, NotSettled
from kplane.provider.errors import KubeconfigError

from .test_kubeconfigs import PUBLISHED, entry

ACME = ControlPlane.model_validate({"metadata": {"name": "acme", "uid": "0-1"}, "spec": {}})


class Management:
    """A management cluster with the control plane `acme`, whose waits end with an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, error: Callable[[], BaseException] | None) -> None:
        self._error = error
        self.waited = False

        @contextlib.asynccontextmanager
        async def connect(*_: Any) -> AsyncIterator[Management]:
            yield self

        monkeypatch.setattr(ControlPlanes, "connect", connect)

    async def get(self, name: str) -> ControlPlane:
        if name != "acme":
            raise NoControlPlane(f"there is no ControlPlane {name}")
        return ACME

    async def wait(self, *_: Any, **__: Any) -> ControlPlane:
        self.waited = True
        if self._error is not None:
            error = self._error()
            await asyncio.sleep(0.05)  # a signal cancels the command here
            raise error
        return ACME

    async def create(self, *_: Any, **__: Any) -> ControlPlane:
        return ACME

    async def clone(self, *_: Any, **__: Any) -> ControlPlane:
        return ACME

    async def adopt(self, *_: Any, **__: Any) -> ControlPlane:
        return ACME

    async def move(self, *_: Any, **__: Any) -> ControlPlane:
        return ACME

    async def restore(self, *_: Any, **__: Any) -> ControlPlane:
        return ACME

    async def wake(self, _: str) -> ControlPlane:
        return ACME

    async def snapshots(self, *_: Any) -> list[Any]:
        return []

    async def delete(self, *_: Any, wait: bool, **__: Any) -> None:
        if wait:
            await self.wait()

    async def sleep(self, *_: Any, **__: Any) -> ControlPlane:
        return await self.wait()

    async def snapshot(self, *_: Any, **__: Any) -> Any:
        return await self.wait()


@pytest.fixture(autouse=True)
def own(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.delenv("KPLANE_CONTEXT", raising=False)
    own_kubeconfig.add_context(entry("kplane"))
    return tmp_path / "config"


def kplane(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def press_ctrl_c() -> BaseException:
    """Send SIGINT to this process. The loop cancels the command, whose next wait raises CancelledError."""
    signal.raise_signal(signal.SIGINT)
    return NotSettled("SIGINT did not cancel the command")


@pytest.mark.parametrize("error", [KeyboardInterrupt, press_ctrl_c, lambda: NotSettled("not in time")])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create", "acme"], "acme is still being created"),
        (["clone", "acme", "copy"], "copy is still being created"),
        (["adopt", "acme", "--kubeconfig=there"], "acme is still being adopted"),
        (["move", "acme", "--to=Dedicated"], "the move of acme continues"),
        (["backup", "restore", "snapshot", "acme", "--identity-secret=key"], "acme is still being created"),
        (["delete", "acme", "--yes"], "it continues"),
        (["sleep", "acme"], "that stays"),
        (["wake", "acme"], "that stays"),
        (["backup", "create", "acme"], "it is still being made"),
    ],
)
def test_interrupted_wait_reports_that_the_change_continues(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: Callable[[], BaseException],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").write_text(PUBLISHED)
    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started pytest without it
    try:
        Management(monkeypatch, error=error)
        result = kplane(*arguments)
    finally:
        signal.signal(signal.SIGINT, former)
    assert said in result.stderr
    expected = ExitCode.INTERRUPTED if error in {KeyboardInterrupt, press_ctrl_c} else ExitCode.TIMED_OUT
    assert result.exit_code == expected


def test_connect_to_unknown_control_plane_exits_without_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Management(monkeypatch, error=lambda: NotSettled("not there"))
    result = kplane("connect", "nosuch", "--", "true")
    assert (result.exit_code, cluster.waited) == (ExitCode.NOT_FOUND, False)
    assert "there is no ControlPlane nosuch" in result.stderr


def test_delete_removes_contexts_and_restores_former_context(monkeypatch: pytest.MonkeyPatch) -> None:
    Management(monkeypatch, error=None)
    document = kubeconfigs.with_exec_credential(PUBLISHED, name="acme", uid="0-1", context="kplane", internal=False)
    own_kubeconfig.add_context(document)
    result = kplane("delete", "acme", "--yes")
    assert result.exit_code == 0, result.output
    assert "context kplane-acme is removed" in result.stderr
    assert own_kubeconfig.context_names() == ["kplane"]
    assert kubeconfigs.current_context() == "kplane"


def test_delete_without_wait_names_command_that_restores_context(monkeypatch: pytest.MonkeyPatch) -> None:
    Management(monkeypatch, error=None)
    document = kubeconfigs.with_exec_credential(PUBLISHED, name="acme", uid="0-1", context="kplane", internal=False)
    own_kubeconfig.add_context(document)
    result = kplane("delete", "acme", "--yes", "--no-wait")
    assert "get it back: kplane kubeconfig acme --merge" in result.stderr


@pytest.mark.parametrize("error", [KubeconfigError("the kubeconfig is empty"), PermissionError("denied")])
def test_delete_succeeds_when_contexts_cannot_be_removed(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    Management(monkeypatch, error=None)

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("kplane.cli.own_kubeconfig.remove_control_plane", fail)
    result = kplane("delete", "acme", "--yes")
    assert (result.exit_code, result.stdout) == (0, "controlplane/acme deleted\n")
    assert f"warning: the context of acme stays in your kubeconfig: {error}" in result.stderr


def test_merge_names_command_that_restores_former_context(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Management(monkeypatch, error=None)

    async def kubeconfig(*_: Any, **__: Any) -> str:
        return PUBLISHED

    monkeypatch.setattr(cluster, "kubeconfig", kubeconfig, raising=False)
    result = kplane("kubeconfig", "acme", "--merge")
    assert result.stdout == "kplane-acme\n"
    assert "back: kubectl config use-context kplane\n" in result.stderr
    # The context is current already, so the command names no former context.
    assert "back:" not in kplane("kubeconfig", "acme", "--merge").stderr


@pytest.mark.parametrize(("keys", "said"), [(188, " (188 keys when last counted; more may have come)"), (0, "")])
async def test_delete_says_that_the_number_of_keys_is_old(keys: int, said: str) -> None:
    status = {"storage": {"keys": keys, "bytes": 1}, "deletionPolicy": "Destroy"}
    control_plane = ControlPlane.model_validate({"metadata": {"name": "acme"}, "spec": {}, "status": status})
    control_planes: Any = SimpleNamespace(snapshots=Management.snapshots.__get__(control_plane))
    assert f"all its data{said} and keys" in await _consequences(control_planes, control_plane)


def test_file_system_error_is_printed_without_errno(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        Path("/proc/nosuch/file").read_text()

    with pytest.raises(typer.Exit):
        run(fail)
    assert capsys.readouterr().err == "error: failed to use /proc/nosuch/file: No such file or directory\n"
