"""What goes wrong with a command."""

from __future__ import annotations

__all__ = ["CliError", "DemoFailed", "DemoRefused"]


class CliError(Exception):
    """Root of this package's errors."""


class DemoRefused(CliError):
    """The demo does not begin: one runs already, or the directory is not one of its own."""


class DemoFailed(CliError):
    """A step of the demo could not be verified."""
