"""The root of what mcm raises."""

from __future__ import annotations

__all__ = ["ConfigurationError", "McmError"]


class McmError(Exception):
    """Root of mcm's own errors."""


class ConfigurationError(McmError):
    """No instance can be configured from what a cluster came with; the message says what is missing."""
