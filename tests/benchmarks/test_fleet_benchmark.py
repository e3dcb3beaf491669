"""Fleet benchmark with three control planes."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


async def test_fleet_benchmark_measures_three_control_planes(binaries: object, measure: Any) -> None:
    arguments = ("--control-planes=3", "--settle-seconds=1", "--rest-seconds=1", "--deadline-seconds=240")
    (run,) = (await measure("fleet", *arguments))["runs"]
    for phase in ("ready", "resolved"):
        assert run["seconds"][phase]["n"] == 3
        assert run["seconds"][phase]["all"] > 0
    assert run["operator"]["cpu_seconds_until_all"] > 0
    assert run["operator"]["peak_rss_mib"] >= run["operator"]["peak_pss_mib"] > 0
    requests = run["requests_per_control_plane"]
    assert requests["management"]["POST namespaces"] == 1.0
    assert requests["tenants"]["POST serviceaccounts/token"] == 2.0
