"""Sleep benchmark: percentiles, and a run with two control planes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.visits import Answers


def test_answers_return_percentiles_or_none() -> None:
    answers = Answers([float(seconds) for seconds in range(100, 0, -1)])
    assert [answers.percentile(share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert Answers([2.0]).percentile(0.5) == 2.0
    assert Answers().percentile(0.5) is None


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_sleep_benchmark_measures_two_control_planes(binaries: object, measure: Any, tmp_path: Path) -> None:
    arguments = ("--control-planes=2", "--wakes=1", "--in-use=2", "--minutes=0.4", "--settle-seconds=1")
    report = await measure("sleep", *arguments)
    for figure in ("ready_seconds", "wake_p50_seconds", "wake_p99_seconds"):
        assert report[figure] > 0
    assert {"mib_each", "disk_mib_each"} <= report.keys()
    assert report["births"]["processor_milliseconds_each_until_ready"]["operator"] > 0
    assert report["births"]["seconds"]["registrations"]["n"] == 2
    assert {"etcd", "operator", "mcm", "gateway", "envoy"} <= report["memory_mib"]["each"].keys()
    assert report["wakes"]["errors"] == report["woken_at_once"]["errors"] == report["in_use"]["errors"] == []
    assert report["in_use"]["turns"] >= 2
    errors = (tmp_path / "errors").read_text()
    directory = errors.rpartition("cluster runs in ")[2].split()[0]
    assert not Path(directory).exists()
