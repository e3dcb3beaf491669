"""The benchmark of snapshots, with few objects: its JSON."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.integration
async def test_a_small_control_plane_is_saved_restored_and_cloned(binaries: object, measure: Any) -> None:
    found = await measure("snapshot", "--keys=300", "--large=1", "--rounds=2")
    assert (found["keys"], len(found["seconds_of_each_round"]["clone"])) == (300, 2)
    for figure in ("snapshot_seconds", "restore_seconds", "clone_seconds", "bytes"):
        assert found[figure] > 0
