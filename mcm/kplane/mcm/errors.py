"""Exceptions of mcm."""

from __future__ import annotations

__all__ = ["ConfigurationError", "McmError", "NotAnnounced", "RegistrationWithdrawn"]


class McmError(Exception):
    """Base class of the errors of this package."""


class ConfigurationError(McmError):
    """A registration or a flag has a value that mcm cannot use; the message names the value and the cause."""


class NotAnnounced(McmError):
    """mcm failed to announce an instance in its registration, so the instance must not start; the caller retries."""


class RegistrationWithdrawn(McmError):
    """A registration does not want this instance any more; the watch will deliver the change."""
