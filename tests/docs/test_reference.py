"""The generated pages of docs/reference/ say what the code says."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.reference.events import recorded
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
    assert {name for name in _leaves(values) if not any(_is_of(name, row) for row in listed)} == set()


def _is_of(name: str, row: str) -> bool:
    return name == row or name.startswith(f"{row}.")


def _leaves(values: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        found += _leaves(value, f"{name}.") if isinstance(value, dict) and value else [name]
    return found


@pytest.mark.parametrize(
    ("row", "found"),
    [("gateway", True), ("gateway.image", True), ("gateway.image.tag", True), ("gate", False), ("gateway.im", False)],
)
def test_a_row_is_of_a_value_or_of_all_below_it(row: str, found: bool) -> None:
    assert _is_of("gateway.image.tag", row) is found


def test_events_are_known_by_the_calls_that_record_them() -> None:
    source = """
events.record(one, reason="Deleted", message="")
self._events.record(one, reason="DataLeft", message="", warning=True)
events.record(one, reason=done, message="")
"""
    assert recorded(ast.parse(source), module="snapshots/restoring.py") == {
        "Deleted": "Normal",
        "DataLeft": "Warning",
        "Cloned": "Normal",
        "Restored": "Normal",
    }
    anything = ast.parse("events.record(one, reason=reason, message='', warning=warning)")
    assert recorded(anything, module="status/writer.py") == {}


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("events.record(one, reason=reason, message='')", "x.py:1: reason reason is unknown"),
        ("events.record(one, reason=done, message='')", "x.py:1: reason done is unknown"),
        ("events.record(one, 'Deleted', '')", "x.py:1: `record` has no keyword reason"),
        ("events.record(one, **said)", "x.py:1: `record` has no keyword reason"),
        ("events.record(one, reason='Deleted', message='', warning=bad)", "x.py:1: warning=bad is no literal"),
    ],
)
def test_a_call_that_does_not_say_its_event_fails_the_generation(call: str, problem: str) -> None:
    with pytest.raises(LookupError, match=re.escape(problem)):
        recorded(ast.parse(call), module="x.py")


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
