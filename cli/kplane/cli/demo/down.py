"""Ends a kept demo. Imports nothing of the steps, so it works if they do not."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from kplane.cli.demo import site
from kplane.cli.demo.display import Display
from kplane.cli.errors import CliError
from kplane.embedded.errors import EmbeddedError

__all__ = ["end_demo"]


def end_demo(directory: Path) -> int:
    """End the demo in the directory, remove the directory, and return the exit status."""
    display = Display(Console(), steps=1)
    directory = directory.absolute()
    if not directory.exists():
        display.line(f"No demo is kept in {directory}.")
        return 0
    try:
        with display.step(f"End the demo in {directory}"):
            if ended := site.clear(directory):
                display.note(f"ended processes {ended}, which a crashed demo had left")
    except (CliError, EmbeddedError, OSError) as error:
        display.line(f"error: {error}", style="red")
        return 1
    return 0
