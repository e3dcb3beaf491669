"""Errors of finding and obtaining programs."""

from __future__ import annotations

__all__ = ["BinariesError", "WayError"]


class BinariesError(Exception):
    """Programs cannot be obtained. The message names them, each attempt, and a way out."""


class WayError(BinariesError):
    """A way of obtaining programs failed. The next way can still work."""
