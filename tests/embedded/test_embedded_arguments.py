"""Arguments of `python -m kplane.embedded`, and modules that its import loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kplane.embedded.__main__ import main


def test_no_manifests_without_no_operators_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["--directory", str(tmp_path), "--no-manifests"])
    assert exit_info.value.code == 2
    assert "--no-manifests needs --no-operators:" in capsys.readouterr().err


def test_import_of_embedded_cluster_loads_no_grpc() -> None:
    # docs/testing/index.md promises this for installations of kplane without extras.
    modules = ("kplane.embedded.__main__", "kplane.embedded.cluster", "kplane.embedded.daemon", "kplane.testing.plugin")
    code = f"import sys, {', '.join(modules)}; sys.exit('grpc' in sys.modules or 'google.protobuf' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
