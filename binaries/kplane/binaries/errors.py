"""What can go wrong while the programs are obtained."""

from __future__ import annotations

__all__ = ["BinariesError", "WayError"]


class BinariesError(Exception):
    """The programs cannot be had; the message says which, what was tried, and what to do."""


class WayError(BinariesError):
    """One way of obtaining programs failed; the next one may still work."""
