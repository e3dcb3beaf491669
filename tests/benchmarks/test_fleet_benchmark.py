"""The benchmark of a fleet, with a small one: that it runs, and counts everybody."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


async def test_a_small_fleet_is_measured(binaries: object, measure: Any) -> None:
    arguments = ("--control-planes=3", "--settle-seconds=1", "--rest-seconds=1", "--deadline-seconds=240")
    (run,) = (await measure("fleet", *arguments))["runs"]
    for what in ("ready", "resolved"):
        assert run["seconds"][what]["n"] == 3
        assert run["seconds"][what]["all"] > 0
    assert run["operator"]["cpu_seconds_until_all"] > 0
    assert run["operator"]["peak_rss_mib"] >= run["operator"]["peak_pss_mib"] > 0
    asked = run["requests_per_control_plane"]
    assert asked["management"]["POST namespaces"] == 1.0
    assert asked["tenants"]["POST serviceaccounts/token"] == 2.0
