"""What `python -m kplane.embedded` refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from kplane.embedded.__main__ import main


def test_runs_no_operators_without_what_they_work_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--directory", str(tmp_path), "--no-manifests"])
    assert ended.value.code == 2
    assert "--no-manifests needs --no-operators:" in capsys.readouterr().err
