"""What can go wrong in mcm itself."""

from __future__ import annotations

__all__ = ["ConfigurationError", "McmError", "RegistrationWithdrawn"]


class McmError(Exception):
    """Root of the errors of this package."""


class ConfigurationError(McmError):
    """A registration asks for something that no instance can be made of; the message says which value and why."""


class RegistrationWithdrawn(McmError):
    """A registration wants no instance any more, at least not for this control plane; a change of it is on its way."""
