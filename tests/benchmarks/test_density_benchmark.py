"""Density benchmark with a single control plane, and with two."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


async def test_density_benchmark_measures_one_and_two_control_planes(binaries: object, measure: Any) -> None:
    arguments = (
        *("--control-planes", "1", "2", "--samples=1", "--settle-seconds=1", "--rest-seconds=2"),
        *("--profile=Core", "--profile=Nodeless"),
    )
    report = await measure("density", *arguments)
    assert [run["control_planes"] for run in report["runs"]] == [1, 2]
    for run in report["runs"]:
        assert run["registered_to_first_write_seconds"]["n"] == 1
        assert run["registered_to_first_write_seconds"]["min"] > 0
        assert list(run["at_rest"]) == ["Core", "Nodeless", "Stock"]
        for phase in run["at_rest"].values():
            assert phase["instances"]["n"] == run["control_planes"]
            assert phase["instances"]["pss_mib"]["min"] > phase["instances"]["anonymous_mib"]["min"] > 1
            assert phase["mcm"]["pss_mib"] > 1
        assert 0 < run["of_stock"]["Core"]["anonymous_mib"] < run["of_stock"]["Nodeless"]["anonymous_mib"]
