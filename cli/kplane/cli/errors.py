"""Errors of the commands, and their exit codes."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["CliError", "DemoFailed", "DemoRefused", "ExitCode", "Refused"]


class ExitCode(IntEnum):
    """Exit code of a command; `kplane --help` lists them."""

    OK = 0
    FAILED = 1
    """The command failed, or the API server refused it."""
    USAGE = 2
    """The command line is wrong."""
    NOT_FOUND = 3
    """No object of that name exists."""
    TIMED_OUT = 4
    """The awaited state was not reached in time."""
    UNREACHABLE = 5
    """The management cluster did not answer, or there is no kubeconfig for it."""
    INTERRUPTED = 130
    """Ctrl-C ended the command."""


class CliError(Exception):
    """Base class of this package's errors."""


class Refused(CliError):
    """Raised if the command refuses an action. The message names the remedy."""


class DemoRefused(CliError):
    """Raised if the demo does not start, because a demo is running, or because the directory has other files."""


class DemoFailed(CliError):
    """Raised if a step of the demo failed its verification."""
