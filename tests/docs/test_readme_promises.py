"""The smoke tests of `make test` show what README promises, in its words."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.syntax import parse

ROOT = Path(__file__).parents[2]


def promises() -> list[str]:
    """What the marker `smoke` names in e2e/."""
    found = []
    for path in sorted((ROOT / "e2e").glob("test_*.py")):
        for node in ast.walk(parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.smoke":
                found += [ast.literal_eval(argument) for argument in node.args]
    return found


def test_each_smoke_test_shows_another_promise_of_readme() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    found = promises()
    assert len(found) >= 9
    assert len(found) == len(set(found))
    assert [promise for promise in found if promise not in readme] == []


def test_no_smoke_test_is_without_a_promise() -> None:
    text = "".join(path.read_text() for path in (ROOT / "e2e").glob("test_*.py"))
    assert text.count("mark.smoke") == text.count("pytest.mark.smoke(") - text.count("pytest.mark.smoke()")
