"""What can go wrong before a test has its cluster."""

from __future__ import annotations

from kplane.embedded.errors import EmbeddedError

__all__ = ["BackendError", "KindFailed", "KindTimedOut", "Misconfigured", "Unavailable"]


class BackendError(EmbeddedError):
    """Root of this package's errors."""


class Unavailable(BackendError):
    """A backend cannot be had on this machine; the message says why, and what would make it so."""


class Misconfigured(BackendError):
    """An option, a marker or a variable says what cannot be done, or what is refused; no test is run."""


class KindFailed(BackendError):
    """kind exited with an error, which is the message."""


class KindTimedOut(KindFailed):
    """kind took too long and was ended: what it was at is done in part."""
