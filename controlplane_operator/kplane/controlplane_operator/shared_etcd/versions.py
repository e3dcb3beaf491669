"""The versions of etcd whose access control keeps tenants apart."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["version_problem"]

_FIXED: Final = {(3, 5): 33, (3, 6): 14, (3, 7): 1}
"""The first patch of each minor version without a known bypass of access control.

GHSA-rfx7-8w68-q57q (nested transactions) and GHSA-q8m4-xhhv-38mg (several calls): 3.6.9. CVE-2026-44283 (PrevKv and
leases in transactions): 3.5.30, 3.6.11. GHSA-xg4h-6gfc-h4m8 (watches): 3.5.33, 3.6.14, 3.7.1.
"""
_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)(-(?:alpha|beta|rc)\b.*)?")


def version_problem(version: str) -> str | None:
    """Say why tenants cannot share an etcd that reports this version; None if they can."""
    found = _VERSION.match(version)
    if found is None:
        return f"it reports version {version!r}, which is not understood; use {_oldest()}"
    minor, patch = (int(found[1]), int(found[2])), int(found[3])
    if minor > max(_FIXED):
        return None
    fixed = _FIXED.get(minor)
    # A pre-release comes before its release.
    if fixed is not None and patch - bool(found[4]) >= fixed:
        return None
    return f"version {version} has known bypasses of access control; use {_oldest()}"


def _oldest() -> str:
    return ", ".join(f"{major}.{minor}.{patch}" for (major, minor), patch in sorted(_FIXED.items())) + " or newer"
