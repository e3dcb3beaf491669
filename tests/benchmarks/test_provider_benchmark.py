"""Provider benchmarks with a fleet of four clusters."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("processes", [1, 2])
async def test_provider_benchmark_counts_every_reconcile(binaries: object, measure: Any, processes: int) -> None:
    arguments = ("--clusters=4", "--burst=5", "--churn=3", f"--processes={processes}", "--deadline-seconds=240")
    (run,) = (await measure("provider", *arguments))["runs"]
    assert (run["clusters"], run["processes"]) == (4, processes)
    assert run["engaged"]["reconciles"] == 4 * 11
    assert run["burst"]["reconciles"] == 4 * 5
    assert run["churn"]["reconciles"] == 4 * 3
    assert run["churn"]["milliseconds"]["max"] >= run["churn"]["milliseconds"]["p50"] > 0
    assert run["burst"]["reconciles_per_second"] > 0
    assert len(run["engaged"]["rss_mib_after"]) == processes


async def test_quiet_benchmark_counts_probes(binaries: object, measure: Any) -> None:
    arguments = ("--clusters=2", "--burst=1", "--churn=1", "--quiet-seconds=40", "--deadline-seconds=240")
    (run,) = (await measure("provider", *arguments))["runs"]
    assert run["quiet"]["with_probes"]["version_probes"] > 0
    assert run["quiet"]["without_probes"]["version_probes"] == 0
    assert run["quiet"]["without_probes"]["api_server_cpu_seconds"] > 0


async def test_trouble_benchmark_measures_each_kind_of_trouble(binaries: object, measure: Any) -> None:
    arguments = ("--clusters=4", "--silent=2", "--flood=1000", "--churn=3", "--deadline-seconds=240")
    arguments += ("--outage-requests=3", "--outage-seconds=10")
    report = await measure("provider_trouble", *arguments)
    assert report["silent"]["seconds"]["with"] > 0
    assert report["flood"]["milliseconds"]["flooded"]["p99"] >= report["flood"]["milliseconds"]["flooded"]["p50"] > 0
    assert report["killed"]["seconds"] > 0
    assert report["hub"]["reconciles_too_many"] == 0
    assert 0 < report["outage"]["seconds"]["first"] <= report["outage"]["seconds"]["last"] <= 5
    assert report["outage"]["processor_seconds"] >= 0
