"""The benchmark of control planes that sleep, with few of them: its options and its JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.visits import Answers


def test_percentiles_are_of_the_answers() -> None:
    answers = Answers([float(each) for each in range(100, 0, -1)])
    assert [answers.percentile(share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert Answers([2.0]).percentile(0.5) == 2.0
    assert Answers().percentile(0.5) is None


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_few_control_planes_are_measured(binaries: object, measure: Any, tmp_path: Path) -> None:
    arguments = ("--control-planes=2", "--wakes=1", "--in-use=2", "--minutes=0.4", "--settle-seconds=1")
    found = await measure("sleep", *arguments)
    for figure in ("ready_seconds", "wake_p50_seconds", "wake_p99_seconds"):
        assert found[figure] > 0
    assert {"mib_each", "disk_mib_each"} <= found.keys()
    assert found["births"]["processor_milliseconds_each_until_ready"]["operator"] > 0
    assert found["births"]["seconds"]["registrations"]["n"] == 2
    assert {"etcd", "operator", "mcm", "gateway", "envoy"} <= found["memory_mib"]["each"].keys()
    assert found["wakes"]["errors"] == found["woken_at_once"]["errors"] == found["in_use"]["errors"] == []
    assert found["in_use"]["turns"] >= 2
    said = (tmp_path / "errors").read_text()
    directory = said.rpartition("cluster runs in ")[2].split()[0]
    assert not Path(directory).exists()
