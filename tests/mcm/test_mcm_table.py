"""Table and checks of clusters, in plain text for people."""

from __future__ import annotations

from kplane.mcm.serving.overview import ClusterSummary, State
from kplane.mcm.serving.table import ClusterDetails, render_checks, render_table

READY = ClusterSummary(
    name="a",
    state=State.READY,
    profile="Core",
    server="https://a",
    version="1.36.3",
    generation=4,
    configuration="00c0ffee",
    pid=7,
    last_error="was slow",
)
BROKEN = ClusterSummary(
    name="longer-name",
    state=State.BACKOFF,
    profile="Nodeless",
    server="https://b",
    restarts=12,
    message="ended with exit code 1; the end of its log is:\nit began\ninvalid key",
    last_error="\x1b[2J ended\x07 with exit code 1\nit began\n" + "x" * 500,
)


def test_table_has_a_line_for_each_cluster() -> None:
    lines = render_table([ClusterDetails(READY, 30 << 20), ClusterDetails(BROKEN, None)]).splitlines()
    assert [line.split("   ")[0].strip() for line in lines] == ["CLUSTER", "a", "longer-name"]
    cells = ["a", "Ready", "1.36.3", "Core", "4", "00c0ffee", "7", "30Mi", "0", "https://a", "was", "slow"]
    assert lines[1].split() == cells
    assert lines[2].split()[1:10] == ["Backoff", "-", "Nodeless", "-", "-", "-", "-", "12", "https://b"]
    assert lines[2].endswith(f"[2J ended with exit code 1 {'x' * 159}…")
    assert "\x1b" not in lines[2]


def test_checks_list_clusters_without_failing_for_them() -> None:
    lines = render_checks({"registrations": ""}, clusters=[READY, BROKEN]).splitlines()
    assert lines == [
        "[+]registrations ok",
        "[+]cluster/a Ready",
        "[-]cluster/longer-name Backoff: ended with exit code 1; the end of its log is: invalid key",
        "readyz check passed",
    ]
    assert render_checks({"registrations": "not read"}, clusters=[]).splitlines() == [
        "[-]registrations failed: not read",
        "readyz check failed",
    ]
