"""The whole demo, as `make demo` runs it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kplane.binaries.programs import Binaries
from kplane.embedded import lock
from kplane.embedded.daemon import end
from kplane.workloads import find_processes

# The tests run serially: each demo starts ten API servers and controller managers.
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.usefixtures("binaries"),
    pytest.mark.xdist_group("demo"),
]

KPLANE = (sys.executable, "-m", "kplane.cli.main")
STEPS = 8
LINES = 35


@pytest.fixture
def directory() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="kplane-demo-"))
    yield root / "demo"
    end(root / "demo")
    shutil.rmtree(root)


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    return tmp_path / "kubeconfig"


@pytest.fixture
def environment(binaries: Binaries, kubeconfig: Path) -> dict[str, str]:
    programs = {str(Path(sys.executable).parent), str(binaries.kubernetes)}
    path = os.pathsep.join([*programs, os.environ.get("PATH", os.defpath)])
    return {**os.environ, "COLUMNS": "200", "KUBECONFIG": str(kubeconfig), "PATH": path}


def run(*command: str, environment: dict[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment, check=False)


def verified(output: str) -> list[str]:
    """Return the lines of the steps that were verified."""
    return [line for line in output.splitlines() if re.match(r"✓ .* \d+\.\d s$", line)]


@pytest.mark.timeout(900)
def test_clean_demo_verifies_every_step_and_removes_its_data(
    directory: Path, environment: dict[str, str], kubeconfig: Path
) -> None:
    result = run(*KPLANE, "demo", "--clean", "--directory", str(directory), environment=environment, seconds=850)
    assert result.returncode == 0, result.stdout + result.stderr
    steps = verified(result.stdout)
    assert len(steps) == STEPS + 1, result.stdout
    assert f"{STEPS + 1}/{STEPS + 1}  Everything has ended" in steps[-1]
    assert len(result.stdout.splitlines()) <= LINES
    assert "200 control planes are Ready" in result.stdout
    assert re.search(r"initech is deleted: [1-9]\d* keys → 0, neighbours untouched", result.stdout)
    assert re.search(r"[1-9]\d* writes acknowledged meanwhile, lost 0, errors 0", result.stdout)
    assert find_processes(directory) == []
    assert not directory.exists()
    assert not kubeconfig.exists()


@pytest.mark.timeout(400)
def test_interrupted_demo_leaves_no_processes_or_kubeconfig(
    directory: Path, environment: dict[str, str], kubeconfig: Path
) -> None:
    demo = subprocess.Popen(
        [*KPLANE, "demo", "--directory", str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        # A test run in the background of a shell ignores SIGINT, and its children would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert demo.stdout is not None
    with demo.stdout as output:
        for line in output:
            if line.startswith("✓ 2/"):
                break
        # Control planes are being created by now.
        time.sleep(3)
        demo.send_signal(signal.SIGINT)
        rest = output.read()
    assert demo.wait(200) == 130, rest
    assert "✗ 3/" in rest
    assert "All processes have ended" in rest
    assert find_processes(directory) == []
    assert not kubeconfig.exists()


@pytest.mark.timeout(900)
def test_demo_runs_until_demo_down_and_next_commands_work(
    directory: Path, environment: dict[str, str], kubeconfig: Path
) -> None:
    result = run(
        *KPLANE, "demo", "--control-planes=8", "--directory", str(directory), environment=environment, seconds=700
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(verified(result.stdout)) == STEPS
    assert lock.holder(directory) is not None
    look, connect, down = (line.strip() for line in result.stdout.splitlines()[-3:])

    listing = run("bash", "-c", look, environment=environment, seconds=60)
    assert listing.returncode == 0, listing.stderr
    rows = [line.split()[:3] for line in listing.stdout.splitlines()[1:]]
    assert rows == [
        ["acme", "Virtual", "Ready"],
        ["globex", "Dedicated", "Ready"],
        ["tenant-001", "Virtual", "Hibernated"],
    ]
    connected = run("bash", "-c", connect, environment=environment, seconds=120)
    assert connected.returncode == 0, connected.stderr
    assert "kube-system" in connected.stdout
    assert "shop" in connected.stdout

    ended = run("bash", "-c", down, environment=environment, seconds=150)
    assert ended.returncode == 0, ended.stdout
    assert find_processes(directory) == []
    assert not directory.exists()
    assert yaml.safe_load(kubeconfig.read_text())["contexts"] == []
