"""Which keys a running API server writes about itself. They are no data of its users."""

from __future__ import annotations

from typing import Final

__all__ = ["is_place", "is_presence"]

_PRESENCE: Final = (b"masterleases/", b"peerserverleases/", b"leases/kube-system/apiserver-")
_ADDRESSES: Final = frozenset({b"services/endpoints/default/kubernetes", b"endpointslices/default/kubernetes"})


def is_presence(key: bytes) -> bool:
    """Tell whether a key, without its prefix, says that an API server runs."""
    return key.startswith(_PRESENCE)


def is_place(key: bytes) -> bool:
    """Tell whether a key, without its prefix, says that an API server runs, or where. The next one writes its own."""
    return is_presence(key) or key in _ADDRESSES
