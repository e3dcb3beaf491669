"""A demo that fails or is interrupted ends its processes, even without a terminal to print to."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kplane.cli.demo import run, site
from kplane.cli.demo.display import Display
from kplane.cli.demo.down import end_demo
from kplane.cli.errors import DemoFailed, DemoRefused
from kplane.embedded.daemon import Daemon

# Runs `run_demo` with a single long step instead of the real steps.
PROGRAM = """
import sys, time
from pathlib import Path
from kplane.cli.demo import run

def wait(*args, **options):
    print("running", flush=True)
    time.sleep(60)

run._run = wait
sys.exit(run.run_demo(Path(sys.argv[1]), clean=False, count=5))
"""


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The directories whose processes were ended."""
    directories: list[Path] = []
    monkeypatch.setattr(run, "end", directories.append)
    monkeypatch.setattr("signal.signal", lambda *args: None)
    return directories


@pytest.fixture
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Display, "line", fail)


@pytest.mark.usefixtures("no_terminal")
@pytest.mark.parametrize("error", [DemoFailed("no"), KeyboardInterrupt()])
def test_failed_output_does_not_keep_processes_running(
    error: BaseException, ended: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(run, "_run", fail)
    with pytest.raises(OSError, match="Input/output"):
        run.run_demo(tmp_path / "demo", clean=False, count=5)
    assert ended == [tmp_path / "demo"]


@pytest.mark.usefixtures("no_terminal", "ended")
def test_daemon_is_stopped_if_its_logs_cannot_be_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stopped = []

    class Failing(Daemon):
        def __init__(self, directory: Path, **options: Any) -> None:
            (directory / "operator.log").write_text("the last lines\n")

        def wait_ready(self, **options: Any) -> Any:
            raise DemoFailed("not ready")

        def stop(self, **options: Any) -> None:
            stopped.append(True)

    monkeypatch.setattr(run, "Daemon", Failing)
    monkeypatch.setattr(run, "_places", lambda directories: "")
    monkeypatch.setattr(run, "log_files", lambda directory: [directory / "operator.log"])
    monkeypatch.setattr(run, "resolve", lambda **options: type("Found", (), {"directories": ()}))
    with pytest.raises(OSError, match="Input/output"):
        run.run_demo(tmp_path / "demo", clean=False, count=5)
    assert stopped == [True]


def start(directory: Path, *, hangup: signal.Handlers) -> subprocess.Popen[str]:
    demo = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup),
    )
    assert demo.stdout is not None
    assert demo.stdout.readline() == "running\n"
    return demo


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_demo_ends_on_hangup_and_termination(number: signal.Signals, tmp_path: Path) -> None:
    with start(tmp_path / "demo", hangup=signal.SIG_DFL) as demo:
        demo.send_signal(number)
        demo.send_signal(signal.SIGHUP)
        output, _ = demo.communicate(timeout=30)
    assert demo.returncode == 130
    assert "All processes have ended" in output


def test_demo_with_ignored_hangup_survives_its_terminal(tmp_path: Path) -> None:
    with start(tmp_path / "demo", hangup=signal.SIG_IGN) as demo:
        demo.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            demo.wait(0.5)
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(30) == 130


def test_second_demo_is_refused_and_keeps_the_first_running(tmp_path: Path) -> None:
    """The first demo locks the directory before its daemon starts: a download of programs may precede."""
    directory = tmp_path / "demo"
    with start(directory, hangup=signal.SIG_DFL) as demo:
        (directory / "log").write_text("of the first")
        with pytest.raises(DemoRefused, match=f"process {demo.pid} already runs a demo"), site.hold(directory):
            pass
        assert (directory / "log").exists()
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(30) == 130
    with site.hold(directory):
        site.empty(directory)
        assert not (directory / "log").exists()
        with pytest.raises(DemoRefused, match="already runs"), site.hold(directory):
            pass


def test_demo_down_ends_running_demo(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    with start(directory, hangup=signal.SIG_DFL) as demo:
        assert end_demo(directory) == 0
        assert demo.wait(30) == 130
    assert not directory.exists()


def test_directory_with_foreign_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(DemoRefused, match="it holds files that no demo wrote"), site.hold(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_emptying_a_directory_does_not_follow_links(tmp_path: Path) -> None:
    directory, elsewhere = tmp_path / "demo", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").touch()
    with site.hold(directory):
        (directory / "link").symlink_to(elsewhere)
        (directory / "etcd").mkdir()
        site.empty(directory)
        assert {path.name for path in directory.iterdir()} == {".kplane-demo", ".kplane-demo-lock"}
    assert (elsewhere / "mine").exists()
