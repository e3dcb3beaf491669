"""What a person reads while the demo runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from kplane.cli.demo.display import Display


def _display(steps: int, *, terminal: bool) -> tuple[Display, io.StringIO]:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=80, color_system=None)
    return Display(console, steps=steps), output


@pytest.mark.parametrize("terminal", [False, True])
def test_numbers_steps_and_says_how_they_ended(terminal: bool) -> None:
    display, output = _display(12, terminal=terminal)
    with display.step("Begin [here]"):
        display.note("two\nlines")
    with pytest.raises(ValueError, match="no"), display.step("Go wrong"):
        raise ValueError("no")
    text = output.getvalue()
    assert "[ 1/12] Begin [here]: ok (0.0 s)" in text
    assert "        two\n" in text
    assert "        lines\n" in text
    assert "[ 2/12] Go wrong: FAILED (0.0 s)" in text


def test_writes_plain_lines_where_there_is_no_terminal() -> None:
    display, output = _display(1, terminal=False)
    with display.step("Only"):
        assert output.getvalue() == "[ 1/1] Only ...\n"
    assert "\x1b" not in output.getvalue()


def test_keeps_long_lines_whole_so_that_commands_can_be_copied() -> None:
    display, output = _display(1, terminal=False)
    display.note("kubectl " + "x" * 300)
    assert len(output.getvalue().splitlines()) == 1
