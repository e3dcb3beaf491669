"""Snapshot benchmark with few objects."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.integration
async def test_snapshot_benchmark_saves_restores_and_clones(binaries: object, measure: Any) -> None:
    report = await measure("snapshot", "--keys=300", "--large=1", "--rounds=2")
    assert (report["keys"], len(report["seconds_of_each_round"]["clone"])) == (300, 2)
    for figure in ("snapshot_seconds", "restore_seconds", "clone_seconds", "bytes"):
        assert report[figure] > 0
