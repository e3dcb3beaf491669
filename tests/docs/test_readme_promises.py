"""Smoke tests of `make test` quote promises of README."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.syntax import parse

ROOT = Path(__file__).parents[2]


def promises() -> list[str]:
    """Return the arguments of the marker `smoke` in e2e/."""
    arguments = []
    for path in sorted((ROOT / "e2e").glob("test_*.py")):
        for node in ast.walk(parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.smoke":
                arguments += [ast.literal_eval(argument) for argument in node.args]
    return arguments


def test_promises_of_smoke_tests_are_distinct_texts_of_readme() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    quotes = promises()
    assert len(quotes) >= 9
    assert len(quotes) == len(set(quotes))
    assert [promise for promise in quotes if promise not in readme] == []


def test_smoke_markers_have_a_promise() -> None:
    text = "".join(path.read_text() for path in (ROOT / "e2e").glob("test_*.py"))
    assert text.count("mark.smoke") == text.count("pytest.mark.smoke(") - text.count("pytest.mark.smoke()")
