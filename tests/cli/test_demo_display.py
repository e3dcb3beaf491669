"""Output of the demo while its steps run."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from kplane.cli.demo.display import Display


def _display(steps: int, *, terminal: bool) -> tuple[Display, io.StringIO]:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=120, color_system=None)
    return Display(console, steps=steps), output


@pytest.mark.parametrize("terminal", [False, True])
def test_display_numbers_steps_and_prints_their_proof(terminal: bool) -> None:
    display, output = _display(3, terminal=terminal)
    with display.step("Begin [here]") as proof:
        proof.show("Has begun [here]", "two\nlines", "and one")
    with display.step("Say no more"):
        pass
    with pytest.raises(ValueError, match="no"), display.step("Go wrong"):
        raise ValueError("no")
    text = output.getvalue()
    assert re.search(r"✓ 1/3  Has begun \[here\] +0\.0 s$", text, re.MULTILINE)
    assert "       two\n       lines\n       and one\n" in text
    assert re.search(r"✓ 2/3  Say no more +0\.0 s$", text, re.MULTILINE)
    assert re.search(r"✗ 3/3  Go wrong: FAILED +0\.0 s$", text, re.MULTILINE)


def test_durations_of_steps_are_aligned() -> None:
    display, output = _display(2, terminal=False)
    for sentence in ("Short", "Quite a bit longer than the one before"):
        with display.step("Title") as proof:
            proof.show(sentence)
    first, second = output.getvalue().splitlines()
    assert len(first) == len(second)


def test_step_is_printed_once_without_terminal() -> None:
    display, output = _display(1, terminal=False)
    with display.step("Only"):
        assert output.getvalue() == ""
    assert len(output.getvalue().splitlines()) == 1
    assert "\x1b" not in output.getvalue()


def test_long_lines_are_not_wrapped_without_terminal() -> None:
    display, output = _display(1, terminal=False)
    display.note("kubectl " + "x" * 300)
    assert len(output.getvalue().splitlines()) == 1
