"""The benchmark of density, with one and two control planes: that it runs, and measures everybody."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


async def test_a_small_density_is_measured(binaries: object, tmp_path: Path) -> None:
    arguments = (
        *("--control-planes", "1", "2", "--samples=1", "--settle-seconds=1", "--rest-seconds=2"),
        *("--profile=Core", "--profile=Nodeless"),
    )
    with (tmp_path / "errors").open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.density", *arguments, stdout=asyncio.subprocess.PIPE, stderr=errors
        )
        try:
            printed, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
    assert process.returncode == 0, (tmp_path / "errors").read_text()
    found = json.loads(printed)
    assert [run["control_planes"] for run in found["runs"]] == [1, 2]
    for run in found["runs"]:
        assert run["registered_to_first_write_seconds"]["n"] == 1
        assert run["registered_to_first_write_seconds"]["min"] > 0
        assert list(run["at_rest"]) == ["Core", "Nodeless", "Stock"]
        for phase in run["at_rest"].values():
            assert phase["instances"]["n"] == run["control_planes"]
            assert phase["instances"]["pss_mib"]["min"] > phase["instances"]["anonymous_mib"]["min"] > 1
            assert phase["mcm"]["pss_mib"] > 1
        assert 0 < run["of_stock"]["Core"]["anonymous_mib"] < run["of_stock"]["Nodeless"]["anonymous_mib"]
