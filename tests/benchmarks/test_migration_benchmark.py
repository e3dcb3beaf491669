"""Migration benchmark: its ledger of lost objects, and a run with few objects."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.ledger import Entry, Ledger
from kplane.provider import ClusterConfig


async def test_ledger_finds_missing_outdated_and_resurrected_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    filled = {"filled-0": Entry("1", "a"), "filled-1": Entry("2", "a")}
    written = {"old": Entry("3", "second"), "gone": None, "right": Entry("4", "x"), "in-doubt": Entry("5", "y")}
    existing = {
        "filled-1": Entry("another", "a"),
        "old": Entry("3", "first"),
        "gone": Entry("6", "z"),
        "right": Entry("4", "x"),
        "kube-root-ca.crt": Entry("7", ""),
    }

    async def listed() -> dict[str, Entry]:
        return existing

    async with Ledger(ClusterConfig("https://127.0.0.1:1"), filled=filled) as ledger:
        monkeypatch.setattr(ledger, "_list", listed)
        monkeypatch.setattr(ledger, "_last", written)
        monkeypatch.setattr(ledger, "_doubtful", {"in-doubt"})
        assert sorted(line.split()[0] for line in await ledger.lost()) == ["filled-0", "filled-1", "gone", "old"]


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_migration_benchmark_moves_control_plane_in_both_modes(binaries: object, measure: Any) -> None:
    report = await measure("migration", "--keys=100", "--writes-a-second=20")
    assert [(run["keys"], run["to"], run["lost"], run["errors"]) for run in report["runs"]] == [
        (100, "Dedicated", 0, []),
        (100, "Virtual", 0, []),
    ]
    for run in report["runs"]:
        for figure in ("keys_per_second", "hold_seconds", "total_seconds", "acknowledged"):
            assert run[figure] > 0
        assert run["lag_ms"] >= 0
        assert run["copies"]["engine"]["keys_per_second"] > 0
        assert run["copies"]["make_mirror"]["keys"] > 100
