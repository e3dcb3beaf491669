"""What can go wrong in mcm itself."""

from __future__ import annotations

__all__ = ["ConfigurationError", "McmError", "NotAnnounced", "RegistrationWithdrawn"]


class McmError(Exception):
    """Root of the errors of this package."""


class ConfigurationError(McmError):
    """A registration asks for something that no instance can be made of; the message says which value and why."""


class NotAnnounced(McmError):
    """An instance must not start, because its registration could not be told of it before; it is tried again."""


class RegistrationWithdrawn(McmError):
    """A registration wants no instance any more, or not this one; a change of it is on its way."""
