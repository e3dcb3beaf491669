"""End of a demo. The module imports no steps, so it works even if their imports fail."""

from __future__ import annotations

import shutil
from pathlib import Path

from rich.console import Console

from kplane.cli.demo import context, site
from kplane.cli.demo.display import Display
from kplane.cli.errors import CliError
from kplane.embedded.errors import EmbeddedError
from kplane.provider import ProviderError

__all__ = ["end_demo"]


def end_demo(directory: Path) -> int:
    """Stop the demo in the directory, remove directory and context, and return the exit status."""
    display = Display(Console(), steps=1)
    directory = directory.absolute()
    if not directory.exists():
        display.line(f"No demo is in {directory}.")
        return 0
    try:
        with display.step(f"End the demo in {directory}") as proof:
            ended = site.stop(directory)
            leftover = (f"ended processes {ended}, which a crashed demo had left",) if ended else ()
            notes = _leave_context(directory)
            shutil.rmtree(directory)
            proof.show("The demo has ended, and its data are deleted", *leftover, *notes)
    except (CliError, EmbeddedError, OSError) as error:
        display.line(f"error: {error}", style="red")
        return 1
    return 0


def _leave_context(directory: Path) -> tuple[str, ...]:
    """Leave the demo's context. If that fails, return the command for the user."""
    try:
        context.leave(directory)
    except (CliError, ProviderError, OSError) as error:
        by_hand = f"remove it by `kubectl config delete-context {context.CONTEXT}`"
        return (f"failed to remove context {context.CONTEXT}: {error}; {by_hand}",)
    return ()
