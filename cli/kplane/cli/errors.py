"""Errors of the commands, and the exit codes that they end with."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["CliError", "DemoFailed", "DemoRefused", "ExitCode", "Refused"]


class ExitCode(IntEnum):
    """How a command ended; `kplane --help` names them."""

    OK = 0
    FAILED = 1
    """The command failed, or the API server refused it."""
    USAGE = 2
    """The command line is wrong."""
    NOT_FOUND = 3
    """There is no object of that name."""
    TIMED_OUT = 4
    """What was waited for did not happen in time."""
    UNREACHABLE = 5
    """The management cluster did not answer, or there is no kubeconfig for it."""
    INTERRUPTED = 130
    """Ctrl-C ended the command."""


class CliError(Exception):
    """Base class of this package's errors."""


class Refused(CliError):
    """The command does not do this; the message says what to do instead."""


class DemoRefused(CliError):
    """The demo does not start: a demo runs already, or the directory holds other files."""


class DemoFailed(CliError):
    """A step of the demo could not be verified."""
