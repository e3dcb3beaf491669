"""Search for processes by their marker in the environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from kplane.workloads import find_processes
from kplane.workloads.processes.proctable import running_components

CHAIN = """exec sh -c 'exec sh -c "exec sleep 1000"'"""


def test_process_is_found_while_it_executes_another_program(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "KPLANE_COMPONENT": f"{tmp_path}/component"}
    for _ in range(30):
        process = subprocess.Popen(["sh", "-c", CHAIN], env=environment)
        try:
            assert [find_processes(tmp_path) for _ in range(3)] == [[process.pid]] * 3
        finally:
            process.kill()
            process.wait()


def test_process_is_found_by_its_directory_not_by_similar_names(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "KPLANE_COMPONENT": f"{tmp_path}/component"}
    process = subprocess.Popen(["sleep", "1000"], env=environment)
    try:
        assert find_processes(tmp_path / "component") == find_processes(tmp_path) == [process.pid]
        assert find_processes(tmp_path / "comp") == []
        assert find_processes(tmp_path / "component" / "below") == []
        assert {component for component in running_components() if component.is_relative_to(tmp_path)} == {
            tmp_path / "component"
        }
    finally:
        process.kill()
        process.wait()


def test_dead_process_is_not_found(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "KPLANE_COMPONENT": f"{tmp_path}/component"}
    process = subprocess.Popen(["sleep", "1000"], env=environment)
    assert find_processes(tmp_path) == [process.pid]
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert find_processes(tmp_path) == []
    process.wait()
