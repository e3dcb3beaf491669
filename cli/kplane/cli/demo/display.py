"""Display of the demo: a spinner on a terminal during a step, and a line with the time of each finished step."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.text import Text

from kplane.cli.printable import printable

__all__ = ["Display", "Proof"]

_WIDTH: Final = 88
"""Width of a line without its time, so that the times are aligned."""
_INDENT: Final = " " * 7
"""Indent of details below the sentence of a step."""


class Proof:
    """Result of a step: a sentence and further lines."""

    def __init__(self, title: str) -> None:
        """Begin with the title of the step, which is shown unless the step replaces it."""
        self.sentence = title
        self.details: tuple[str, ...] = ()

    def show(self, sentence: str, *details: str) -> None:
        """Set the sentence and the further lines."""
        self.sentence, self.details = sentence, details


class Display:
    """Prints numbered steps, their results and their durations."""

    def __init__(self, console: Console, *, steps: int) -> None:
        """`steps` is the number of all steps."""
        self._console = console
        self._steps = steps
        self._number = 0
        self._begun = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the display was created."""
        return time.monotonic() - self._begun

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Proof]:
        """Show the title during a step on a terminal, and the result after it."""
        self._number += 1
        number, proof, begun = f"{self._number}/{self._steps}", Proof(title), time.monotonic()
        try:
            with self._running(f"{number}  {title}"):
                yield proof
        except BaseException:
            self._ended("✗", f"{number}  {title}: FAILED", style="red", begun=begun)
            raise
        self._ended("✓", f"{number}  {proof.sentence}", style="green", begun=begun)
        for detail in proof.details:
            self.note(detail)

    def note(self, text: str, *, style: str = "dim") -> None:
        """Print further lines about a step, indented."""
        for line in text.splitlines():
            self.line(f"{_INDENT}{line}", style=style)

    def line(self, text: str = "", *, style: str = "") -> None:
        """Print a line without markup."""
        self._console.print(printable(text), style=style, markup=False, highlight=False, soft_wrap=True)

    def _running(self, label: str) -> contextlib.AbstractContextManager[Status | None]:
        if not self._console.is_terminal:
            return contextlib.nullcontext()
        return self._console.status(f"[bold]{escape(printable(label))}[/]", spinner="dots")

    def _ended(self, mark: str, text: str, *, style: str, begun: float) -> None:
        line = Text.assemble(
            (mark, style), f" {printable(text):<{_WIDTH - 2}}", (f"{time.monotonic() - begun:6.1f} s", "dim")
        )
        self._console.print(line, soft_wrap=True)
