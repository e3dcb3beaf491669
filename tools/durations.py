"""Prints the durations of a test run, and fails if the run took more than its budget.

`python -m tools.durations test` reads the JUnit files that the steps of `make test` wrote into reports/. The budgets
are in pyproject.toml, `[tool.kplane.budgets]`.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Final, Self
from xml.etree import ElementTree as ET

from tools.steps import REPORTS

__all__ = ["Budget", "Step", "Timed", "complaints", "describe", "read"]

_SLOWEST: Final = 10


@dataclass(frozen=True, slots=True)
class Budget:
    """Time budget of a run."""

    target_seconds: float
    """Target on an idle machine with two cores."""
    limit_seconds: float
    """Limit on any machine, even under other load: a longer run fails."""
    test_limit_seconds: float | None = None
    """Limit of a single test, including its fixtures; None: no limit."""

    @classmethod
    def of(cls, run: str, *, pyproject: Path) -> Self:
        """Read the budget of a run, "test" or "test-all"."""
        return cls(**tomllib.loads(pyproject.read_text())["tool"]["kplane"]["budgets"][run])


@dataclass(frozen=True, slots=True)
class Timed:
    """A test, and its duration including its fixtures."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a run, which wrote a JUnit file."""

    name: str
    seconds: float
    """Duration from begin to end, in seconds. If tests run in parallel, it is less than the sum of their durations."""
    tests: Sequence[Timed]


def read(path: Path) -> Step:
    """Read the JUnit file of a step."""
    suites = list(ET.parse(path).getroot().iter("testsuite"))  # noqa: S314 - our own pytest wrote it
    tests = [
        Timed(f"{case.get('classname')}::{case.get('name')}", float(case.get("time", "0")))
        for suite in suites
        for case in suite.iter("testcase")
    ]
    return Step(path.stem, sum(float(suite.get("time", "0")) for suite in suites), tests)


def complaints(steps: Iterable[Step], budget: Budget) -> list[str]:
    """Return a sentence for each run or test that exceeds the budget."""
    steps = list(steps)
    total = sum(step.seconds for step in steps)
    sentences = []
    if total > budget.limit_seconds:
        sentences.append(f"the run took {_clock(total)}, more than its limit of {_clock(budget.limit_seconds)}")
    if budget.test_limit_seconds is not None:
        sentences += [
            f"{test.name} took {test.seconds:.0f} s, more than the {budget.test_limit_seconds:.0f} s of a test "
            f"that is not slow"
            for step in steps
            for test in step.tests
            if test.seconds > budget.test_limit_seconds
        ]
    return sentences


def describe(steps: Iterable[Step], budget: Budget) -> str:
    """Return the steps and the slowest tests, a line each."""
    steps = list(steps)
    slowest = sorted((test for step in steps for test in step.tests), key=attrgetter("seconds"), reverse=True)
    total = sum(step.seconds for step in steps)
    return "\n".join(
        [
            *(f"{_clock(step.seconds):>8}  {step.name}, {len(step.tests)} tests" for step in steps),
            f"{_clock(total):>8}  together; the target on two idle cores is {_clock(budget.target_seconds)}",
            f"the {_SLOWEST} slowest:",
            *(f"{test.seconds:>6.1f} s  {test.name}" for test in slowest[:_SLOWEST]),
        ]
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def main(run: str) -> int:
    """Print the durations of a run. Returns 1 if the run exceeds its budget or has no reports."""
    budget = Budget.of(run, pyproject=Path("pyproject.toml"))
    steps = [read(path) for path in sorted(REPORTS.glob("*.xml"))]
    if not steps:
        print(f"{REPORTS}/ has no reports: run `make {run}`", file=sys.stderr)
        return 1
    print(f"== durations of make {run}")
    print(describe(steps, budget))
    exceeded = complaints(steps, budget)
    for complaint in exceeded:
        print(f"over budget: {complaint}", file=sys.stderr)
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
