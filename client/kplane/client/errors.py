"""The exceptions of this package, one family. What the API server refuses is raised as kplane.provider does."""

from __future__ import annotations

__all__ = ["ClientError", "NoControlPlane", "NoKubeconfig", "NotSettled"]


class ClientError(Exception):
    """Root of the errors of this package."""


class NoControlPlane(ClientError, LookupError):
    """There is no ControlPlane of that name."""


class NoKubeconfig(ClientError):
    """The control plane has published no kubeconfig of that kind yet."""


class NotSettled(ClientError, TimeoutError):
    """A control plane did not come to where it was waited for; the message has what its conditions say."""
