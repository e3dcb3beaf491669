"""A model defines flags, environment variables, help and reference."""

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


def test_flags_override_the_environment(needed: str, tmp_path: Path) -> None:
    environment = {"MADE_WORKERS": "7", "MADE_LEVEL": "high", "MADE_ELECT": "false", "MADE_OTHER": "x"}
    config = Made.parse([needed, "--workers=3"], environment=environment)
    assert (config.programs_dir, config.workers, config.level, config.elect) == ((tmp_path,), 3, "high", False)
    assert config.listen == ("::1", 8080)


def test_list_in_environment_is_split_at_spaces(tmp_path: Path) -> None:
    (tmp_path / "b c").mkdir()
    config = Made.parse([], environment={"MADE_PROGRAMS_DIR": f"{tmp_path} '{tmp_path}/b c'"})
    assert config.programs_dir == (tmp_path, tmp_path / "b c")


def test_empty_variable_counts_as_unset(needed: str) -> None:
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
def test_error_of_invalid_value_names_flag_or_variable(needed: str, environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as failure:
        Made.parse([needed], environment=environment)
    assert str(failure.value).startswith(sentence)


def test_missing_flag_or_directory_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="--programs-dir is needed"):
        Made.parse([], environment={})
    with pytest.raises(ConfigurationError, match="--programs-dir /nowhere: there is no such directory"):
        Made.parse(["--programs-dir=/nowhere"], environment={})


def test_help_lists_flags_defaults_and_variables(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Made.parse(["--help"], environment={})
    output = " ".join(capsys.readouterr().out.split())
    assert "--programs-dir DIR Where programs are; may be repeated; needed" in output
    assert "speed: --workers N 100% of them (default: 4)" in output
    assert "--listen HOST:PORT Where to listen (default: [::1]:8080)" in output
    assert "--elect, --no-elect Whether to elect" in output
    assert "MADE_PROGRAMS_DIR" in output


def test_parse_known_returns_other_flags(needed: str) -> None:
    config, remainder = Made.parse_known([needed, "--other=1", "--workers=2"], environment={})
    assert (config.workers, remainder) == (2, ["--other=1"])
    assert {"--programs-dir", "--elect", "--no-elect", "--help"} <= set(Made.flags())


def test_reference_has_a_row_for_each_flag() -> None:
    rows = list(Made.reference())
    assert rows[2] == "| `--programs-dir DIR` | `MADE_PROGRAMS_DIR` | needed | Where programs are |"
    assert "| `--level {low,high}` | `MADE_LEVEL` | low | How loud |" in rows
