"""What goes wrong with an embedded management cluster."""

from __future__ import annotations

__all__ = [
    "DaemonFailed",
    "DirectoryInUse",
    "EmbeddedError",
    "KubectlFailed",
    "LeftRunning",
    "NotReadyInTime",
    "leaves",
]


class EmbeddedError(Exception):
    """Root of this package's errors."""


class DirectoryInUse(EmbeddedError):
    """Another management cluster runs over the same directory."""


class NotReadyInTime(EmbeddedError):
    """A part of the management cluster did not become ready before its deadline."""


class DaemonFailed(EmbeddedError):
    """The daemon ended, or did not get ready in time; the message carries the tail of its log."""


class LeftRunning(EmbeddedError):
    """Processes of a management cluster are still there after it was stopped."""


class KubectlFailed(EmbeddedError):
    """kubectl exited with an error, which is the message."""


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Give the errors in a group, and in the groups in it, one by one."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
