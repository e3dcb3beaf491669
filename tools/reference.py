"""Write docs/reference.md from the code: `python -m tools.reference`; with `--check`, only compare."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kplane.controlplane_operator.config import OperatorConfig
from kplane.controlplane_operator.reasons import reason_tables
from kplane.gateway.settings import Settings as GatewaySettings
from kplane.mcm.settings import Settings

__all__ = ["main", "render"]

_FILE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference.md"

_HEAD: Final = (
    "# Reference",
    "",
    "`make generate` writes this page from the code. Change the code instead.",
    "",
    "## Reasons of conditions",
    "",
    "*Retried* says when the operator looks at the object again: always after an event, and by time as well if it says",
    "so.",
    "The phase of a control plane follows from the reason of `Ready`, see",
    "`controlplane_operator/kplane/controlplane_operator/reasons.py`. After it was published, its phase is",
    "`Unavailable` while the operator retries by itself, and `Failed` while a person has to act.",
    "",
)


def render() -> str:
    """Return the page as it should be."""
    operator = ("## Flags of controlplane-operator", "", *OperatorConfig.reference(), "")
    mcm = ("## Flags of mcm", "", *Settings.reference())
    gateway = ("", "## Flags of kplane-gateway", "", *GatewaySettings.reference())
    return "\n".join([*_HEAD, *reason_tables(), *operator, *mcm, *gateway]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or compare it; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    page = render()
    if not parser.parse_args(arguments).check:
        _FILE.write_text(page)
        return 0
    if _FILE.read_text() == page:
        return 0
    sys.stderr.write(f"{_FILE} is out of date: run `make generate`\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
