"""Programs of the quick start and of provider's README, as a user copies them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUICK_START = "docs/multicluster/quick-start.md"


@pytest.fixture
def copied(tmp_path):
    def copy(page):
        path = tmp_path / "configmaps.py"
        path.write_text(re.search(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)[1])
        return path

    return copy


@pytest.mark.parametrize("page", [QUICK_START, "provider/README.md"])
def test_program_passes_mypy_in_strict_mode(copied, page):
    program = copied(page)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", program.parent / "c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.integration
def test_quick_start_reads_configmaps_and_exits_on_sigint(copied, api_server):
    program = copied(QUICK_START)
    clusters = program.parent / "clusters"
    clusters.mkdir()
    (clusters / "one.kubeconfig").write_bytes(api_server.admin_kubeconfig.read_bytes())
    with subprocess.Popen(
        [sys.executable, program.name],
        cwd=program.parent,
        stderr=subprocess.PIPE,
        text=True,
        # In the background of a shell, the test process ignores SIGINT. Its child would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as running:
        assert running.stderr is not None
        lines = []
        for line in running.stderr:
            lines.append(line)
            if re.search(r"one/default/kube-root-ca.crt has 1 keys", line):
                break
        running.send_signal(signal.SIGINT)
        rest = running.communicate(timeout=60)[1]
    assert running.returncode == 0, "".join(lines) + rest
    assert "kube-root-ca.crt has 1 keys" in lines[-1], "".join(lines) + rest
