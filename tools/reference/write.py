"""Writes the generated pages below docs/reference/: `python -m tools.reference`; with `--check`, only compares."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tools.reference.cli import command_line
from tools.reference.conditions import conditions
from tools.reference.crds import kinds
from tools.reference.events import events
from tools.reference.flags import flags
from tools.reference.markdown import GENERATED
from tools.reference.metrics import metrics
from tools.reference.names import names
from tools.reference.python_api import python_api
from tools.reference.sources import ROOT
from tools.reference.values import values
from tools.reference.versions import versions

__all__ = ["main", "pages"]

_DIRECTORY: Final = ROOT / "docs" / "reference"


def pages() -> Mapping[str, str]:
    """Return the desired pages: text by path below docs/reference/."""
    return {
        "cli.md": command_line(),
        "conditions.md": conditions(),
        "events.md": events(),
        "flags.md": flags(),
        "labels.md": names(),
        "metrics.md": metrics(),
        "support-matrix.md": versions(),
        "values.md": values(),
        **kinds(),
        **python_api(),
    }


def main(arguments: Sequence[str] | None = None, *, directory: Path = _DIRECTORY) -> int:
    """Write the pages and remove obsolete generated pages, or compare them. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    check: bool = parser.parse_args(arguments).check
    desired = pages()
    existing = {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*.md")}
    present = {name: text for name, text in existing.items() if text.startswith(GENERATED) or name in desired}
    outdated = sorted(name for name in desired.keys() | present.keys() if desired.get(name) != present.get(name))
    for name in outdated:
        path = directory / name
        if check:
            sys.stderr.write(f"{path} is out of date: run `make generate`\n")
        elif name in desired:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(desired[name])
        else:
            path.unlink()
    return 1 if check and outdated else 0
