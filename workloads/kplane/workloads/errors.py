"""What can go wrong when programs are run."""

from __future__ import annotations

__all__ = ["ProgramFailed", "ProgramTimedOut", "RuntimeFailure", "WorkloadsError"]


class WorkloadsError(Exception):
    """Root of the errors of this package."""


class RuntimeFailure(WorkloadsError):
    """A runtime cannot do what it was asked; the message says for which component and why."""


class ProgramFailed(WorkloadsError):
    """A one-shot command did not start, ended with a failure, or wrote more than is taken."""

    def __init__(self, message: str, *, exit_code: int | None = None, stderr: bytes = b"") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        """None if it did not start; negative: the number of the signal that ended it."""
        self.stderr = stderr


class ProgramTimedOut(WorkloadsError):
    """A one-shot command did not end in time, and was killed."""
