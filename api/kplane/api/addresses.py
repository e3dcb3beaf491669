"""The canonical form of an API server's address, by which the operator and mcm compare addresses."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from functools import lru_cache
from urllib.parse import urlsplit

__all__ = ["normalized_address"]


@lru_cache(maxsize=4096)
def normalized_address(url: str) -> str:
    """Return the canonical form of a URL; equal forms mean the same API server.

    Two control planes at the same API server would share its data. The form ignores letter case, a final dot of the
    host, the default port, extra slashes, and notations of an IP address. It needs no name server. Raises ValueError if
    `url` is no URL.
    """
    parts = urlsplit(url)
    path = re.sub("/+", "/", parts.path).rstrip("/")
    return f"https://{_host(parts.hostname or '')}:{parts.port or 443}{path}"


def _host(name: str) -> str:
    name = name.rstrip(".").lower()
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(name)
        if isinstance(address, ipaddress.IPv6Address):
            return f"[{address}]" if address.ipv4_mapped is None else str(address.ipv4_mapped)
    # The resolver takes 127.1, 0x7f.0.0.1 and 2130706433 for addresses too, without a request to a name server.
    with contextlib.suppress(OSError):
        return socket.inet_ntoa(socket.inet_aton(name))
    return name
