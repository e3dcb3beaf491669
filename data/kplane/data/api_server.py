"""Keys that a running API server writes about itself. Such keys are no user data."""

from __future__ import annotations

from typing import Final

__all__ = ["is_place", "is_presence"]

_PRESENCE: Final = (b"masterleases/", b"peerserverleases/", b"leases/kube-system/apiserver-")
_ADDRESSES: Final = frozenset({b"services/endpoints/default/kubernetes", b"endpointslices/default/kubernetes"})


def is_presence(key: bytes) -> bool:
    """Return whether a key, without its prefix, is a record that an API server runs."""
    return key.startswith(_PRESENCE)


def is_place(key: bytes) -> bool:
    """Return whether a key, without its prefix, records that an API server runs, or its address.

    The next API server writes its own records.
    """
    return is_presence(key) or key in _ADDRESSES
