"""Errors of running programs."""

from __future__ import annotations

__all__ = ["ProgramFailed", "ProgramTimedOut", "RuntimeFailure", "WorkloadsError"]


class WorkloadsError(Exception):
    """Base class of the errors of this package."""


class RuntimeFailure(WorkloadsError):
    """A runtime cannot carry out a call; the message names the component and the reason."""


class ProgramFailed(WorkloadsError):
    """A one-shot command did not start, ended with a failure, or wrote more than the limit."""

    def __init__(self, message: str, *, exit_code: int | None = None, stderr: bytes = b"") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        """Exit code; negative: the number of the signal that ended the command. None if the command did not start."""
        self.stderr = stderr


class ProgramTimedOut(WorkloadsError):
    """A one-shot command did not end within its timeout, and was killed."""
