"""Errors of an embedded management cluster."""

from __future__ import annotations

__all__ = [
    "DaemonFailed",
    "DirectoryInUse",
    "EmbeddedError",
    "FakeNodesInvalid",
    "KubectlFailed",
    "LeftRunning",
    "NotReadyInTime",
    "leaves",
]


class EmbeddedError(Exception):
    """Base class of this package's errors."""


class DirectoryInUse(EmbeddedError):
    """Another management cluster runs in the same directory."""


class NotReadyInTime(EmbeddedError):
    """A part of the management cluster did not become ready before its deadline."""


class DaemonFailed(EmbeddedError):
    """The daemon ended, or was not ready in time. The message has the tail of its log."""


class FakeNodesInvalid(EmbeddedError):
    """A control plane has an invalid annotation for fake nodes, or must not have fake nodes."""


class LeftRunning(EmbeddedError):
    """Processes of a management cluster still ran after its end."""


class KubectlFailed(EmbeddedError):
    """kubectl failed. The message has its output."""


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """List the errors in a group and in its nested groups."""
    errors: list[BaseException] = []
    for error in group.exceptions:
        errors += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return errors
