"""Exceptions of this package. Errors of the API server are raised as exceptions of kplane.provider."""

from __future__ import annotations

__all__ = ["ClientError", "NoControlPlane", "NoKubeconfig", "NotSettled"]


class ClientError(Exception):
    """Base class of the exceptions of this package."""


class NoControlPlane(ClientError, LookupError):
    """Raised if there is no ControlPlane with the given name."""


class NoKubeconfig(ClientError):
    """Raised if the control plane has not published a kubeconfig for this type of client."""


class NotSettled(ClientError, TimeoutError):
    """Raised if a control plane did not reach a state in time; the message has the cause from its conditions."""
