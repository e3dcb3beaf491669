"""One model gives flags, environment variables, help and reference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field

from kplane.api.configuration import Configuration, ConfigurationError, Directory, Flag, HostPort, Listen


class Made(Configuration):
    program: ClassVar = "made"
    environment_prefix: ClassVar = "MADE_"
    description: ClassVar = "Is made for a test."

    programs_dir: Annotated[tuple[Directory, ...], Flag("DIR")]
    """Where programs are"""
    workers: Annotated[int, Field(ge=1), Flag("N", "speed")] = 4
    """100% of them"""
    level: Literal["low", "high"] = "low"
    """How loud"""
    elect: bool | None = None
    """Whether to elect"""
    listen: Listen = HostPort("::1", 8080)
    """Where to listen"""


@pytest.fixture
def needed(tmp_path: Path) -> str:
    return f"--programs-dir={tmp_path}"


def test_flags_win_over_the_environment(needed: str, tmp_path: Path) -> None:
    environment = {"MADE_WORKERS": "7", "MADE_LEVEL": "high", "MADE_ELECT": "false", "MADE_OTHER": "x"}
    made = Made.parse([needed, "--workers=3"], environment=environment)
    assert (made.programs_dir, made.workers, made.level, made.elect) == ((tmp_path,), 3, "high", False)
    assert made.listen == ("::1", 8080)


def test_a_list_of_the_environment_has_spaces_between_its_items(tmp_path: Path) -> None:
    (tmp_path / "b c").mkdir()
    made = Made.parse([], environment={"MADE_PROGRAMS_DIR": f"{tmp_path} '{tmp_path}/b c'"})
    assert made.programs_dir == (tmp_path, tmp_path / "b c")


def test_an_empty_variable_is_not_given(needed: str) -> None:
    assert Made.parse([needed], environment={"MADE_WORKERS": "", "MADE_ELECT": ""}).workers == 4


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"MADE_WORKERS": "0"}, "--workers 0: at least 1 is needed"),
        ({"MADE_WORKERS": "many"}, "--workers many: Input should be a valid integer"),
        ({"MADE_LISTEN": "here"}, "--listen here: this is not HOST:PORT, such as"),
        ({"MADE_LEVEL": "loud"}, "--level loud: Input should be 'low' or 'high'"),
        ({"MADE_PROGRAMS_DIR": "it's"}, "MADE_PROGRAMS_DIR: No closing quotation; quote items as in a shell"),
    ],
)
def test_what_is_wrong_is_said_of_the_flag(needed: str, environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Made.parse([needed], environment=environment)
    assert str(refused.value).startswith(sentence)


def test_what_is_needed_is_asked_for() -> None:
    with pytest.raises(ConfigurationError, match="--programs-dir is needed"):
        Made.parse([], environment={})
    with pytest.raises(ConfigurationError, match="--programs-dir /nowhere: there is no such directory"):
        Made.parse(["--programs-dir=/nowhere"], environment={})


def test_help_says_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Made.parse(["--help"], environment={})
    shown = " ".join(capsys.readouterr().out.split())
    assert "--programs-dir DIR Where programs are; may be repeated; needed" in shown
    assert "speed: --workers N 100% of them (default: 4)" in shown
    assert "--listen HOST:PORT Where to listen (default: [::1]:8080)" in shown
    assert "--elect, --no-elect Whether to elect" in shown
    assert "MADE_PROGRAMS_DIR" in shown


def test_other_flags_are_handed_on(needed: str) -> None:
    made, others = Made.parse_known([needed, "--other=1", "--workers=2"], environment={})
    assert (made.workers, others) == (2, ["--other=1"])
    assert {"--programs-dir", "--elect", "--no-elect", "--help"} <= set(Made.flags())


def test_the_reference_has_a_row_for_each() -> None:
    rows = list(Made.reference())
    assert rows[2] == "| `--programs-dir DIR` | `MADE_PROGRAMS_DIR` | needed | Where programs are |"
    assert "| `--level {low,high}` | `MADE_LEVEL` | low | How loud |" in rows
