"""Places: what of an API server, or of the shared etcd, one control plane has for itself, and which place is whose."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from kplane.api.conditions import MANAGED
from kplane.controlplane_operator.watch.cache import Object

__all__ = ["etcd_address", "held_addresses", "is_etcd_address", "normalized_address", "written_addresses"]

_ETCD: Final = "shared etcd/"


def etcd_address(cluster_path: str) -> str:
    """Name what lies under a clusterPath in the etcd that control planes of mode Virtual share."""
    return f"{_ETCD}{cluster_path}"


def is_etcd_address(address: str) -> bool:
    """Tell whether a place is one of the shared etcd, and not the address of an API server."""
    return address.startswith(_ETCD)


@lru_cache(maxsize=4096)
def normalized_address(url: str) -> str:
    """Return the one spelling of a URL: control planes of one place would share what is there.

    Whatever is equal without asking a name server is one place: upper and lower case and a dot after the host, the
    default port, slashes, the spellings of an IP address. Raises ValueError where it is no URL.
    """
    parts = urlsplit(url)
    path = re.sub("/+", "/", parts.path).rstrip("/")
    return f"https://{_host(parts.hostname or '')}:{parts.port or 443}{path}"


def held_addresses(control_plane: Object) -> list[str]:
    """Return the places that are written down as a control plane's, in its status.

    An adopted one has where it is published, and what it was granted last; the two differ while it moves.
    """
    status = control_plane.get("status") or {}
    managed = next((told.get("status") for told in status.get("conditions") or () if told.get("type") == MANAGED), None)
    if managed != "False":
        path = status.get("clusterPath")
        return [etcd_address(path)] if path else []
    return _addresses(status.get("claimedAddress"), status.get("endpoint"))


def written_addresses(endpoint: Object) -> list[str]:
    """Return the places that a ControlPlaneEndpoint may lead to as it is written, without a tenant's path."""
    return _addresses(*((endpoint.get(part) or {}).get("endpoint") for part in ("spec", "status")))


def _addresses(*urls: str | None) -> list[str]:
    found = []
    for url in urls:
        with contextlib.suppress(ValueError):
            found += [normalized_address(url)] if url else []
    return list(dict.fromkeys(found))


def _host(name: str) -> str:
    name = name.rstrip(".").lower()
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(name)
        if isinstance(address, ipaddress.IPv6Address):
            return f"[{address}]" if address.ipv4_mapped is None else str(address.ipv4_mapped)
    # What the resolver takes for an address without asking anybody: also 127.1, 0x7f.0.0.1 and 2130706433.
    with contextlib.suppress(OSError):
        return socket.inet_ntoa(socket.inet_aton(name))
    return name
