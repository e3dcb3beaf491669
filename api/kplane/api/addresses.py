"""The one spelling of an API server's address, by which both operators tell whether two addresses are one."""

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
    """Return the one spelling of a URL: control planes of one place would share what is there.

    Whatever is equal without asking a name server is one place: upper and lower case and a dot after the host, the
    default port, slashes, the spellings of an IP address. Raises ValueError where it is no URL.
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
    # What the resolver takes for an address without asking anybody: also 127.1, 0x7f.0.0.1 and 2130706433.
    with contextlib.suppress(OSError):
        return socket.inet_ntoa(socket.inet_aton(name))
    return name
