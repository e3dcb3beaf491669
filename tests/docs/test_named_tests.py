"""Tests that documents name."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BELOW = "tests/controlplane_operator/integration/"


def test_tests_that_the_page_of_mistakes_names_exist() -> None:
    text = (ROOT / "docs" / "contribute" / "mistakes.md").read_text()
    named = re.findall(r"`((?:tests/)?[\w/]+\.py)::(test_\w+)`", text)
    assert len(named) > 10
    for path, name in named:
        file = ROOT / (path if path.startswith("tests/") else f"{BELOW}{path}")
        assert f"def {name}(" in file.read_text(), (path, name)
