"""Write the table of mcm's flags in docs/mcm.md from the code: `python -m tools.mcm_flags`; `--check` only compares."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kplane.mcm.settings import Settings

__all__ = ["main"]

_FILE: Final = Path(__file__).resolve().parents[1] / "docs" / "mcm.md"
_BEGIN: Final = "<!-- flags: written by `make generate` -->\n"
_END: Final = "<!-- end of flags -->\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table, or compare it; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.mcm_flags", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the table is out of date")
    page = _FILE.read_text()
    before, _, rest = page.partition(_BEGIN)
    table = "\n".join(Settings.reference())
    wanted = f"{before}{_BEGIN}{table}\n{_END}{rest.partition(_END)[2]}"
    if not parser.parse_args(arguments).check:
        _FILE.write_text(wanted)
        return 0
    if page == wanted:
        return 0
    sys.stderr.write(f"the table of flags in {_FILE} is out of date: run `make generate`\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
