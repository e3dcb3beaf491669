"""The limit of open files is raised, and a warning is logged before it is reached."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.embedded.python_path import python_path
from kplane.provider.serving.metrics import process_families
from kplane.provider.serving.open_files import OpenFiles, raise_limit, watching_open_files

Eventually = Callable[..., Any]
LOWERED = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))"


@pytest.mark.parametrize("operator", ["kplane.mcm.main", "kplane.controlplane_operator.main"])
def test_operators_raise_the_soft_limit_to_the_hard_limit(tmp_path: Path, operator: str) -> None:
    """The operator ends early, without a cluster. The test reads the limit that the operator has set."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.touch()
    script = f"""
{LOWERED}
import contextlib, sys
from {operator} import main
with contextlib.suppress(SystemExit):
    main()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    arguments = [f"--state-dir={tmp_path}/state", f"--programs-dir={tmp_path}", f"--kubeconfig={kubeconfig}"]
    ended = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={"PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )
    assert ended.stdout.splitlines()[-1:] == ["(128, 128)"], ended.stderr


def test_raise_limit_retries_with_the_maximum_of_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(256, 2**63 - 1)]

    def set_limit(_: int, wanted: tuple[int, int]) -> None:
        if wanted[0] > 10_240:
            raise ValueError("current limit exceeds maximum limit")
        limits.append(wanted)

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    raise_limit()
    assert limits[-1] == (10_240, 2**63 - 1)


async def test_watch_warns_once_at_80_percent_until_use_is_below_70(
    eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    looks = iter([79, 80, 95, 71, 90, 69, 85])
    read: list[int] = []

    def look() -> OpenFiles:
        read.append(next(looks, 0))
        return OpenFiles(read[-1], 100)

    async with watching_open_files(look, interval_seconds=0.0):
        await eventually(lambda: 0 in read)
    assert [record.getMessage().partition(" are")[0] for record in caplog.records] == [
        "80 of 100 open files",
        "85 of 100 open files",
    ]


def test_process_metrics_have_open_files_and_limit() -> None:
    values = {sample.name: sample.value for family in process_families() for sample in family.samples}
    found = OpenFiles.read()
    assert values["process_max_fds"] == found.limit
    assert abs(values["process_open_fds"] - found.used) <= 2
