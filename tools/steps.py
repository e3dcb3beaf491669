"""Runs the commands of a step of `make test`, and writes their durations in the format of pytest's test reports.

`python -m tools.steps lint "ruff check ." mypy` runs both commands and writes reports/lint.xml. All commands run, even
after a failed command.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

__all__ = ["REPORTS", "run"]

REPORTS: Final = Path("reports")


def run(step: str, commands: Sequence[str], *, reports: Path = REPORTS) -> bool:
    """Run the commands, write the report of the step, and return whether all succeeded."""
    suite = ET.Element("testsuite", name=step)
    failed = 0
    for command in commands:
        print(command, flush=True)
        begun = time.monotonic()
        code = subprocess.run(shlex.split(command), check=False).returncode
        words = shlex.split(command)
        words[0] = Path(words[0]).name
        case = ET.SubElement(
            suite, "testcase", classname=step, name=shlex.join(words), time=f"{time.monotonic() - begun:.3f}"
        )
        if code != 0:
            failed += 1
            ET.SubElement(case, "failure", message=f"exit code {code}")
    seconds = sum(float(case.get("time", "0")) for case in suite)
    suite.attrib |= {"tests": str(len(commands)), "failures": str(failed), "time": f"{seconds:.3f}"}
    reports.mkdir(parents=True, exist_ok=True)
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.ElementTree(suites).write(reports / f"{step}.xml", encoding="utf-8", xml_declaration=True)
    return not failed


if __name__ == "__main__":
    sys.exit(not run(sys.argv[1], sys.argv[2:]))
