"""Shows the progress of the demo: a spinner on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.status import Status

__all__ = ["Display"]

_INDENT: Final = " " * 8


class Display:
    """Prints numbered steps with their notes and durations."""

    def __init__(self, console: Console, *, steps: int) -> None:
        """Take the number of steps to come."""
        self._console = console
        self._steps = steps
        self._number = 0
        self._status: Status | None = None

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Show a step while it runs, and how it ended."""
        self._number += 1
        label = f"[{self._number:2}/{self._steps}] {title}"
        begun = time.monotonic()
        try:
            if self._console.is_terminal:
                with self._console.status(f"[bold]{escape(label)}[/]", spinner="dots") as self._status:
                    yield
            else:
                self.line(f"{label} ...")
                yield
        except BaseException:
            self._ended(label, mark="FAILED", style="red", begun=begun)
            raise
        finally:
            self._status = None
        self._ended(label, mark="ok", style="green", begun=begun)

    def note(self, text: str) -> None:
        """Print a line about the step that runs."""
        for line in text.splitlines():
            self.line(f"{_INDENT}{line}", style="dim")

    def line(self, text: str, *, style: str = "") -> None:
        """Print a line unchanged."""
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def _ended(self, label: str, *, mark: str, style: str, begun: float) -> None:
        self.line(f"{label}: {mark} ({time.monotonic() - begun:.1f} s)", style=style)
