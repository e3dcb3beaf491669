"""Provider of the namespaces of a host cluster: each namespace appears as a cluster."""

from __future__ import annotations

from kplane.provider.providers.namespace.provider import UID_ATTRIBUTE, NamespaceProvider

__all__ = ["UID_ATTRIBUTE", "NamespaceProvider"]
