"""The benchmark of migration, with few objects: its JSON, and that its ledger finds what is lost."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.ledger import Entry, Ledger
from kplane.provider import ClusterConfig


async def test_the_ledger_finds_what_is_missing_old_or_back_again(monkeypatch: pytest.MonkeyPatch) -> None:
    filled = {"filled-0": Entry("1", "a"), "filled-1": Entry("2", "a")}
    written = {"old": Entry("3", "second"), "gone": None, "right": Entry("4", "x"), "in-doubt": Entry("5", "y")}
    found = {
        "filled-1": Entry("another", "a"),
        "old": Entry("3", "first"),
        "gone": Entry("6", "z"),
        "right": Entry("4", "x"),
        "kube-root-ca.crt": Entry("7", ""),
    }

    async def listed() -> dict[str, Entry]:
        return found

    async with Ledger(ClusterConfig("https://127.0.0.1:1"), filled=filled) as ledger:
        monkeypatch.setattr(ledger, "_list", listed)
        monkeypatch.setattr(ledger, "_last", written)
        monkeypatch.setattr(ledger, "_doubtful", {"in-doubt"})
        assert sorted(each.split()[0] for each in await ledger.lost()) == ["filled-0", "filled-1", "gone", "old"]


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_small_control_plane_is_moved_and_back(binaries: object, measure: Any) -> None:
    found = await measure("migration", "--keys=100", "--writes-a-second=20")
    assert [(run["keys"], run["to"], run["lost"], run["errors"]) for run in found["runs"]] == [
        (100, "Dedicated", 0, []),
        (100, "Virtual", 0, []),
    ]
    for run in found["runs"]:
        for figure in ("keys_per_second", "hold_seconds", "total_seconds", "acknowledged"):
            assert run[figure] > 0
        assert run["lag_ms"] >= 0
        assert run["copies"]["engine"]["keys_per_second"] > 0
        assert run["copies"]["make_mirror"]["keys"] > 100
