"""The generated pages of docs/reference/ say what the code says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tools.reference.write import main, pages

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart" / "kplane"


def test_the_reference_is_up_to_date() -> None:
    assert main(["--check"]) == 0


def test_metrics_of_alerts_and_dashboard_are_listed() -> None:
    text = "".join(path.read_text() for path in CHART.rglob("*") if path.suffix in {".yaml", ".json"})
    named = set(re.findall(r"\b(?:kplane|mcm|multicluster)_[a-z_]*[a-z](?=[{[)/ ])", text))
    listed = set(re.findall(r"^\| `(\w+)`", pages()["metrics.md"], re.MULTILINE))
    assert len(named) > 10
    assert {name for name in named if not {name, *_stems(name)} & listed} == set()


def _stems(name: str) -> set[str]:
    return {name.removesuffix(end) for end in ("_bucket", "_count", "_sum")}


def test_each_value_of_the_chart_has_a_row() -> None:
    listed = set(re.findall(r"^\| `([\w.]+)`", pages()["values.md"], re.MULTILINE))
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert {name for name in _leaves(values) if not any(name.startswith(row) for row in listed)} == set()


def _leaves(values: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        found += _leaves(value, f"{name}.") if isinstance(value, dict) and value else [name]
    return found


def test_pages_that_are_no_more_are_removed_and_written_ones_stay(tmp_path: Path) -> None:
    assert main([], directory=tmp_path) == 0
    flags = tmp_path / "flags.md"
    (tmp_path / "former.md").write_text(flags.read_text())
    (tmp_path / "gateway.md").write_text("# By hand\n")
    flags.write_text("# Edited\n")

    assert main(["--check"], directory=tmp_path) == 1
    assert main([], directory=tmp_path) == 0

    assert flags.read_text() == pages()["flags.md"]
    assert not (tmp_path / "former.md").exists()
    assert (tmp_path / "gateway.md").exists()
    assert main(["--check"], directory=tmp_path) == 0
