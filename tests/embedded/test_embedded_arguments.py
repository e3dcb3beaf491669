"""What `python -m kplane.embedded` refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kplane.embedded.__main__ import main


def test_runs_no_operators_without_what_they_work_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--directory", str(tmp_path), "--no-manifests"])
    assert ended.value.code == 2
    assert "--no-manifests needs --no-operators:" in capsys.readouterr().err


def test_a_cluster_without_control_planes_needs_no_grpc() -> None:
    # What docs/testing/index.md promises to who installs kplane without extras.
    modules = ("kplane.embedded.__main__", "kplane.embedded.cluster", "kplane.embedded.daemon", "kplane.testing.plugin")
    code = f"import sys, {', '.join(modules)}; sys.exit('grpc' in sys.modules or 'google.protobuf' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
