"""Exceptions of mcm."""

from __future__ import annotations

__all__ = ["ConfigurationError", "McmError", "NotAnnounced", "RegistrationWithdrawn"]


class McmError(Exception):
    """Root of the errors of this package."""


class ConfigurationError(McmError):
    """A registration or a flag has a value that mcm cannot use; the message says which value and why."""


class NotAnnounced(McmError):
    """An instance must not start, because mcm failed to announce it in its registration; the caller retries."""


class RegistrationWithdrawn(McmError):
    """A registration does not want this instance any more; the watch will deliver the change."""
