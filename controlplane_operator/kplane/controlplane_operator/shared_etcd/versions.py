"""Versions of etcd whose access control isolates tenants."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["version_problem"]

_FIXED: Final = {(3, 5): 33, (3, 6): 14, (3, 7): 1}
"""First patch release of each minor version without a known bypass of access control.

GHSA-rfx7-8w68-q57q (nested transactions) and GHSA-q8m4-xhhv-38mg (several calls): 3.6.9. CVE-2026-44283 (PrevKv and
leases in transactions): 3.5.30, 3.6.11. GHSA-xg4h-6gfc-h4m8 (watches): 3.5.33, 3.6.14, 3.7.1.
"""
_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)(-(?:alpha|beta|rc)\b.*)?")


def version_problem(version: str) -> str | None:
    """Return why tenants cannot share an etcd that reports this version; None if they can."""
    match = _VERSION.match(version)
    if match is None:
        return f"it reports version {version!r}, which is not understood; use {_oldest()}"
    minor, patch = (int(match[1]), int(match[2])), int(match[3])
    if minor > max(_FIXED):
        return None
    fixed = _FIXED.get(minor)
    # A pre-release comes before its release.
    if fixed is not None and patch - bool(match[4]) >= fixed:
        return None
    return f"version {version} has known bypasses of access control; use {_oldest()}"


def _oldest() -> str:
    return ", ".join(f"{major}.{minor}.{patch}" for (major, minor), patch in sorted(_FIXED.items())) + " or newer"
