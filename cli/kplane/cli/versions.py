"""Comparison of versions of kplane, in the forms of Python and Helm."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

__all__ = ["is_newer"]


def is_newer(version: str, other: str) -> bool:
    """Return whether a version is newer than another.

    A pre-release, such as 0.2.0rc1 or 0.2.0-rc.1, is older than 0.2.0. The text after a + is ignored. An invalid
    version is neither newer nor older than another version.
    """
    try:
        # Helm allows characters after the + that Python does not accept.
        return Version(version.partition("+")[0]) > Version(other.partition("+")[0])
    except InvalidVersion:
        return False
