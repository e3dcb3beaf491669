"""Report of durations of a test run, and failure above its budget."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import durations, steps
from tools.durations import Budget, Step, Timed, complaints, describe, read

ROOT = Path(__file__).parents[2]
BUDGET = Budget(target_seconds=60, limit_seconds=120, test_limit_seconds=30)

JUNIT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites name="pytest tests"><testsuite name="pytest" errors="0" failures="0" skipped="0" tests="2" time="8.250">
<testcase classname="tests.a" name="test_one" time="3.5" />
<testcase classname="tests.a" name="test_two[x]" time="0.1" />
</testsuite></testsuites>
"""


def step(name: str, seconds: float, **tests: float) -> Step:
    return Step(name, seconds, [Timed(test, took) for test, took in tests.items()])


def test_step_is_read_from_junit_xml(tmp_path: Path) -> None:
    (tmp_path / "unit.xml").write_text(JUNIT)
    tests = [Timed("tests.a::test_one", 3.5), Timed("tests.a::test_two[x]", 0.1)]
    assert read(tmp_path / "unit.xml") == Step("unit", 8.25, tests)


def test_report_lists_steps_and_slowest_tests() -> None:
    many = {f"t{number}": float(number) for number in range(1, 15)}
    lines = describe([step("unit", 65.4, **many), step("e2e", 3600, long=99.0)], BUDGET).splitlines()
    assert lines[:2] == ["    1:05  unit, 14 tests", "   60:00  e2e, 1 tests"]
    assert lines[2].split()[:2] == ["61:05", "together;"]
    assert [line.split()[-1] for line in lines[4:]] == ["long", *(f"t{number}" for number in range(14, 5, -1))]


def test_run_between_target_and_limit_has_no_complaints() -> None:
    assert complaints([step("unit", 61, one=30.0), step("e2e", 59)], BUDGET) == []


def test_limit_applies_to_sum_of_all_steps() -> None:
    [complaint] = complaints([step("unit", 61), step("e2e", 60)], BUDGET)
    assert complaint == "the run took 2:01, more than its limit of 2:00"


def test_slow_test_above_limit_is_named() -> None:
    [complaint] = complaints([step("unit", 61, one=30.5, two=29.0)], BUDGET)
    assert complaint.startswith("one took 30 s, more than the 30 s")
    anything_goes = Budget(target_seconds=60, limit_seconds=120)
    assert complaints([step("unit", 61, one=100.0)], anything_goes) == []


@pytest.mark.parametrize("run", ["test", "test-all"])
def test_each_run_has_a_budget_with_headroom(run: str) -> None:
    budget = Budget.of(run, pyproject=ROOT / "pyproject.toml")
    assert 0 < budget.target_seconds < budget.limit_seconds


def test_step_runs_all_commands_and_records_durations(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    commands = [f"{sys.executable} -c 'print(1)'", "false", f"{sys.executable} -c 'print(2)'"]
    assert steps.run("lint", commands, reports=tmp_path / "reports") is False
    assert [line for line in capfd.readouterr().out.splitlines() if line.isdigit()] == ["1", "2"]
    step = read(tmp_path / "reports" / "lint.xml")
    assert [test.name for test in step.tests][1] == "lint::false"
    assert step.seconds == pytest.approx(sum(test.seconds for test in step.tests), abs=0.01)
    assert steps.run("lint", ["true"], reports=tmp_path) is True


def test_durations_command_fails_without_reports_or_above_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = "target_seconds = {0}\nlimit_seconds = {0}\n"
    budgets = f"[tool.kplane.budgets.wide]\n{table.format(9)}[tool.kplane.budgets.narrow]\n{table.format(8)}"
    (tmp_path / "pyproject.toml").write_text(budgets)
    assert durations.main("wide") == 1
    assert "no reports" in capsys.readouterr().err
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "unit.xml").write_text(JUNIT)
    assert durations.main("wide") == 0
    assert "tests.a::test_one" in capsys.readouterr().out
    assert durations.main("narrow") == 1
    assert "over budget: the run took 0:08" in capsys.readouterr().err
