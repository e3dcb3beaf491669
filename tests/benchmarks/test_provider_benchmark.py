"""The benchmark of a fleet of clusters, with a small one: that it runs, and counts every reconcile."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_small_fleet_is_measured(binaries: object, measure: Any, processes: int) -> None:
    arguments = ("--clusters=4", "--burst=5", "--churn=3", f"--processes={processes}", "--deadline-seconds=240")
    (run,) = (await measure("provider", *arguments))["runs"]
    assert (run["clusters"], run["processes"]) == (4, processes)
    assert run["engaged"]["reconciles"] == 4 * 11
    assert run["burst"]["reconciles"] == 4 * 5
    assert run["churn"]["reconciles"] == 4 * 3
    assert run["churn"]["milliseconds"]["max"] >= run["churn"]["milliseconds"]["p50"] > 0
    assert run["burst"]["reconciles_per_second"] > 0
    assert len(run["engaged"]["rss_mib_after"]) == processes


async def test_a_small_fleet_in_trouble_is_measured(binaries: object, measure: Any) -> None:
    arguments = ("--clusters=4", "--silent=2", "--flood=1000", "--churn=3", "--deadline-seconds=240")
    arguments += ("--outage-requests=3", "--outage-seconds=10")
    found = await measure("provider_trouble", *arguments)
    assert found["silent"]["seconds"]["with"] > 0
    assert found["flood"]["milliseconds"]["flooded"]["p99"] >= found["flood"]["milliseconds"]["flooded"]["p50"] > 0
    assert found["killed"]["seconds"] > 0
    assert found["hub"]["reconciles_too_many"] == 0
    assert 0 < found["outage"]["seconds"]["first"] <= found["outage"]["seconds"]["last"] <= 5
    assert found["outage"]["processor_seconds"] >= 0
