"""Errors of choosing and starting a cluster for tests."""

from __future__ import annotations

from kplane.embedded.errors import EmbeddedError

__all__ = ["BackendError", "KindFailed", "KindTimedOut", "Misconfigured", "Unavailable"]


class BackendError(EmbeddedError):
    """Base class of this package's errors."""


class Unavailable(BackendError):
    """A backend is not available on this machine. The message has the reason and a way out."""


class Misconfigured(BackendError):
    """An option, a marker or a variable is invalid or refused. No test runs."""


class KindFailed(BackendError):
    """kind failed. The message has its output."""


class KindTimedOut(KindFailed):
    """kind took too long and was ended. Its work may be incomplete."""
