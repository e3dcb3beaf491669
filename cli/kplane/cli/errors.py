"""Errors of the commands."""

from __future__ import annotations

__all__ = ["CliError", "DemoFailed", "DemoRefused"]


class CliError(Exception):
    """Base class of this package's errors."""


class DemoRefused(CliError):
    """The demo does not start: a demo runs already, or the directory holds other files."""


class DemoFailed(CliError):
    """A step of the demo could not be verified."""
