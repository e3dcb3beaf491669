"""Errors of keys and certificates."""

from __future__ import annotations

__all__ = ["CredentialsInvalid", "PkiError"]


class PkiError(Exception):
    """Root of the errors of this package."""


class CredentialsInvalid(PkiError):
    """Stored keys or certificates are missing or damaged; the message names the entry."""
