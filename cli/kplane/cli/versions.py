"""Compares versions of kplane, as Python and as Helm write them."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

__all__ = ["is_newer"]


def is_newer(version: str, other: str) -> bool:
    """Whether a version is newer than another one; a pre-release, such as 0.2.0rc1 or 0.2.0-rc.1, is older than 0.2.0.

    What follows a + does not count. A text that is no version is never newer, and nothing is newer than it.
    """
    try:
        # Helm writes after the + what Python does not accept there.
        return Version(version.partition("+")[0]) > Version(other.partition("+")[0])
    except InvalidVersion:
        return False
