"""Generated pages of docs/reference/."""

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


def test_reference_is_up_to_date() -> None:
    assert main(["--check"]) == 0


def test_reference_lists_metrics_of_alerts_and_dashboard() -> None:
    text = "".join(path.read_text() for path in CHART.rglob("*") if path.suffix in {".yaml", ".json"})
    named = set(re.findall(r"\b(?:kplane|mcm|multicluster)_[a-z_]*[a-z](?=[{[)/ ])", text))
    listed = set(re.findall(r"^\| `(\w+)`", pages()["metrics.md"], re.MULTILINE))
    assert len(named) > 10
    assert {name for name in named if not {name, *_stems(name)} & listed} == set()


def _stems(name: str) -> set[str]:
    return {name.removesuffix(end) for end in ("_bucket", "_count", "_sum")}


def test_reference_has_a_row_for_each_value_of_the_chart() -> None:
    listed = set(re.findall(r"^\| `([\w.]+)`", pages()["values.md"], re.MULTILINE))
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert {name for name in _leaves(values) if not any(_is_of(name, row) for row in listed)} == set()


def _is_of(name: str, row: str) -> bool:
    return name == row or name.startswith(f"{row}.")


def _leaves(values: dict[str, Any], prefix: str = "") -> list[str]:
    names = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        names += _leaves(value, f"{name}.") if isinstance(value, dict) and value else [name]
    return names


@pytest.mark.parametrize(
    ("row", "found"),
    [("gateway", True), ("gateway.image", True), ("gateway.image.tag", True), ("gate", False), ("gateway.im", False)],
)
def test_row_covers_its_value_and_all_values_below(row: str, found: bool) -> None:
    assert _is_of("gateway.image.tag", row) is found


def test_recorded_returns_type_and_reason_of_each_event() -> None:
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
def test_recorded_refuses_calls_without_literal_event(call: str, problem: str) -> None:
    with pytest.raises(LookupError, match=re.escape(problem)):
        recorded(ast.parse(call), module="x.py")


def test_write_removes_stale_pages_and_keeps_manual_pages(tmp_path: Path) -> None:
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
