"""The namespaces of one host cluster, each as a cluster of its own."""

from __future__ import annotations

from kplane.provider.providers.namespace.provider import UID_ATTRIBUTE, NamespaceProvider

__all__ = ["UID_ATTRIBUTE", "NamespaceProvider"]
