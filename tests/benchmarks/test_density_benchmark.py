"""The benchmark of density, with one control plane: that it runs, and measures everybody."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


async def test_a_small_density_is_measured(binaries: object, tmp_path: Path) -> None:
    arguments = ("--control-planes=1", "--settle-seconds=1", "--rest-seconds=2", "--profile=Core", "--profile=Nodeless")
    with (tmp_path / "errors").open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.density", *arguments, stdout=asyncio.subprocess.PIPE, stderr=errors
        )
        printed, _ = await process.communicate()
    assert process.returncode == 0, (tmp_path / "errors").read_text()
    found = json.loads(printed)
    assert found["registered_to_first_write_seconds"]["min"] > 0
    assert list(found["at_rest"]) == ["Core", "Nodeless", "Stock"]
    for phase in found["at_rest"].values():
        assert phase["instances"]["n"] == 1
        assert phase["instances"]["pss_mib"]["min"] > phase["instances"]["anonymous_mib"]["min"] > 1
        assert phase["mcm"]["pss_mib"] > 1
    assert 0 < found["of_stock"]["Core"]["anonymous_mib"] < found["of_stock"]["Nodeless"]["anonymous_mib"]
