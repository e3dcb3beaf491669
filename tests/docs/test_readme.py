"""Length and links of README.md."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES = 150


def test_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= LINES


def test_links_of_readme_lead_to_files() -> None:
    targets = re.findall(r"""(?:\]\(|src=")([^)"#]+)""", (ROOT / "README.md").read_text())
    own = [target for target in targets if "://" not in target]
    assert len(own) > 20
    assert [target for target in own if not (ROOT / target).exists()] == []
