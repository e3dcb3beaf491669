"""The management cluster in its own process, which leaves no program running however it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kplane.binaries.programs import Binaries
from kplane.embedded import lock
from kplane.embedded.daemon import Daemon, end
from kplane.embedded.errors import DaemonFailed
from kplane.embedded.python_path import python_path
from kplane.workloads import find_processes

pytestmark = pytest.mark.integration


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="kplane-daemon-"))
    yield path
    end(path)
    shutil.rmtree(path)


def _started(directory: Path, binaries: Binaries) -> Daemon:
    daemon = Daemon(directory, binaries=binaries, operators=False, fsync=False)
    daemon.wait_ready(timeout_seconds=240)
    assert find_processes(directory)
    return daemon


def test_daemon_stops_its_programs_and_releases_its_lock(directory: Path, binaries: Binaries) -> None:
    with _started(directory, binaries) as daemon:
        assert lock.holder(directory) == daemon.pid
    assert find_processes(directory) == []
    assert lock.holder(directory) is None
    assert not (directory / "ready.json").exists()


def test_gateway_without_inotify_instances_is_refused_at_once(directory: Path, few_inotify_instances) -> None:
    code = (
        "import pathlib, sys\n"
        "from kplane.binaries.programs import Binaries\n"
        "from kplane.embedded.daemon import Daemon\n"
        "from kplane.embedded.errors import DaemonFailed\n"
        "binaries = Binaries.of_runtime(kubernetes=pathlib.Path('/none'), etcd=pathlib.Path('/none'))\n"
        "try:\n"
        "    Daemon(pathlib.Path(sys.argv[1]), binaries=binaries, gateway=True)\n"
        "except DaemonFailed as failed:\n"
        "    print(failed)\n"
    )
    command = [*few_inotify_instances(12), sys.executable, "-c", code, str(directory)]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert output.startswith(f"failed to start the management cluster in {directory}: user 0 has ")
    assert "inotify instances in use (fs.inotify.max_user_instances), and 13 more are needed" in output
    assert find_processes(directory) == []


@pytest.mark.slow
async def test_daemon_stops_when_its_parent_closes_the_pipe(directory: Path, binaries: Binaries, eventually) -> None:
    daemon = _started(directory, binaries)
    # The kernel closes the pipe of every process that dies.
    daemon._process.stdin.close()
    await eventually(lambda: find_processes(directory), lambda left: not left, timeout=120)
    assert daemon._process.wait(60) == 0


async def test_killed_daemon_leaves_no_programs_running(directory: Path, binaries: Binaries, eventually) -> None:
    daemon = _started(directory, binaries)
    os.kill(daemon.pid, signal.SIGKILL)
    daemon._process.wait(60)
    await eventually(lambda: find_processes(directory), lambda left: not left, timeout=120)
    daemon._process.stdin.close()


def test_stop_during_start_leaves_no_programs_running(directory: Path, binaries: Binaries) -> None:
    daemon = Daemon(directory, binaries=binaries, operators=False, fsync=False)
    try:
        while not find_processes(directory):
            assert daemon._process.poll() is None
    finally:
        daemon.stop()
    assert find_processes(directory) == []


def test_wait_ready_raises_the_cause_of_a_failed_start(directory: Path, tmp_path: Path) -> None:
    daemon = Daemon(directory, binaries=Binaries.of_runtime(kubernetes=tmp_path, etcd=tmp_path))
    with pytest.raises(DaemonFailed, match="etcd"):
        daemon.wait_ready(timeout_seconds=240)
    daemon._process.stdin.close()


def test_end_of_an_unused_directory_returns_an_empty_list(tmp_path: Path) -> None:
    assert end(tmp_path / "never") == []
