"""The management cluster in a process of its own: ended in every way, it leaves nothing running."""

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


def test_ends_with_all_that_it_runs(directory: Path, binaries: Binaries) -> None:
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
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert told.startswith(f"failed to start the management cluster in {directory}: user 0 has ")
    assert "inotify instances in use (fs.inotify.max_user_instances), and 13 more are needed" in told
    assert find_processes(directory) == []


@pytest.mark.slow
async def test_ends_when_whoever_started_it_is_gone(directory: Path, binaries: Binaries, eventually) -> None:
    daemon = _started(directory, binaries)
    # What the kernel does with the pipe of a process that dies, however it dies.
    daemon._process.stdin.close()
    await eventually(lambda: find_processes(directory), lambda left: not left, timeout=120)
    assert daemon._process.wait(60) == 0


async def test_killed_outright_it_takes_its_programs_along(directory: Path, binaries: Binaries, eventually) -> None:
    daemon = _started(directory, binaries)
    os.kill(daemon.pid, signal.SIGKILL)
    daemon._process.wait(60)
    await eventually(lambda: find_processes(directory), lambda left: not left, timeout=120)
    daemon._process.stdin.close()


def test_stops_while_it_starts(directory: Path, binaries: Binaries) -> None:
    daemon = Daemon(directory, binaries=binaries, operators=False, fsync=False)
    try:
        while not find_processes(directory):
            assert daemon._process.poll() is None
    finally:
        daemon.stop()
    assert find_processes(directory) == []


def test_says_why_it_did_not_start(directory: Path, tmp_path: Path) -> None:
    daemon = Daemon(directory, binaries=Binaries.of_runtime(kubernetes=tmp_path, etcd=tmp_path))
    with pytest.raises(DaemonFailed, match="etcd"):
        daemon.wait_ready(timeout_seconds=240)
    daemon._process.stdin.close()


def test_end_finds_nothing_to_do_where_nothing_runs(tmp_path: Path) -> None:
    assert end(tmp_path / "never") == []
