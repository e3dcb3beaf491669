"""The whole demo, as `make demo` runs it."""

from __future__ import annotations

import os
import re
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
from kplane.embedded.daemon import end
from kplane.workloads import find_processes

# One after the other: each starts ten API servers and controller managers.
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.usefixtures("binaries"),
    pytest.mark.xdist_group("demo"),
]

STEPS = 10


@pytest.fixture
def directory() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="kplane-demo-"))
    yield root / "demo"
    end(root / "demo")
    shutil.rmtree(root)


@pytest.fixture
def environment(binaries: Binaries) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "200"}


@pytest.mark.timeout(900)
def test_verifies_every_step_and_leaves_nothing(directory: Path, environment: dict[str, str]) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "kplane.cli.main", "demo", "--directory", str(directory)],
        capture_output=True,
        text=True,
        timeout=850,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    ended = [line for line in result.stdout.splitlines() if ": ok (" in line]
    assert len(ended) == STEPS, result.stdout
    assert f"[{STEPS}/{STEPS}] Stop everything: ok" in result.stdout
    assert re.search(r"globex: [1-9]\d* writes acknowledged during the move, lost 0, errors 0", result.stdout)
    assert find_processes(directory) == []
    assert not directory.exists()


@pytest.mark.timeout(400)
def test_is_interrupted_without_leaving_anything(directory: Path, environment: dict[str, str]) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "kplane.cli.main", "demo", "--directory", str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        # A test run in the background of a shell ignores SIGINT, and its children would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert demo.stdout is not None
    with demo.stdout as output:
        for line in output:
            if "Create 200 control planes" in line:
                break
        demo.send_signal(signal.SIGINT)
        rest = output.read()
    assert demo.wait(200) == 130, rest
    assert "All processes have ended" in rest
    assert find_processes(directory) == []


@pytest.mark.timeout(900)
def test_kept_it_runs_until_demo_down(directory: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "kplane.cli.main"]
    kept = subprocess.run(
        [*command, "demo", "--keep", "--directory", str(directory)],
        capture_output=True,
        text=True,
        timeout=700,
        env=environment,
        check=False,
    )
    assert kept.returncode == 0, kept.stdout + kept.stderr
    assert "get controlplanes" in kept.stdout
    assert lock.holder(directory) is not None
    assert find_processes(directory)

    down = subprocess.run(
        [*command, "demo-down", "--directory", str(directory)],
        capture_output=True,
        text=True,
        timeout=150,
        env=environment,
        check=False,
    )
    assert down.returncode == 0, down.stdout
    assert find_processes(directory) == []
    assert not directory.exists()
