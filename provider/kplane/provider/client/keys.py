"""Names of objects, alone or with their namespaces."""

from __future__ import annotations

from typing import Protocol

from kplane.provider.errors import ProviderError

__all__ = ["Named", "display_key", "locate"]


class Named(Protocol):
    """Names an object, as `Request` and `ObjectKey` do; the namespace is empty for cluster-scoped kinds."""

    @property
    def namespace(self) -> str:
        """Namespace of the object."""
        ...

    @property
    def name(self) -> str:
        """Name of the object."""
        ...


def locate(key: str | Named, *, namespace: str | None) -> tuple[str, str | None]:
    """Return name and namespace of an object; an empty namespace becomes None. Raises ProviderError for two."""
    if isinstance(key, str):
        return key, namespace or None
    if namespace is not None:
        raise ProviderError(f"{key} has a namespace of its own: give no other one")
    return key.name, key.namespace or None


def display_key(name: str, *, namespace: str | None) -> str:
    """Return an object's namespace and name, such as `default/web`, for logs and messages."""
    return f"{namespace}/{name}" if namespace else name
