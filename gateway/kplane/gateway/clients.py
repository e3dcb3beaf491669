"""Who sends requests that wait, and how much one client address may have of the gateway meanwhile."""

from __future__ import annotations

import contextlib
import ipaddress
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Self

from kplane.gateway.errors import Declined

__all__ = ["IPV6_NETWORK", "NOBODY", "Client", "ClientLimits"]

IPV6_NETWORK: Final = 64
"""Bits of an IPv6 address that count. A client may have all addresses of such a network."""
_WINDOW: Final = 60.0
"""Seconds in which wakes count."""
_MAX_ADDRESSES: Final = 10_000
"""Addresses whose wakes are remembered. The one that came longest ago goes first."""


@dataclass(frozen=True, slots=True)
class Client:
    """Who sends a request."""

    address: str
    """Its IP address, or its network; empty if that is not known: such clients have no limit of their own."""
    wakes: int | None = None
    """Control planes that it may wake in a minute; None: any number, because its credential is verified."""

    @classmethod
    def at(cls, address: str, *, wakes: int | None) -> Self:
        """Return the client at an IP address."""
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return cls("", wakes)
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        if isinstance(found, ipaddress.IPv6Address):
            return cls(str(ipaddress.ip_network((found, IPV6_NETWORK), strict=False)), wakes)
        return cls(str(found), wakes)


NOBODY: Final = Client("")
"""A client of which nothing is known."""


class ClientLimits:
    """Bounds the waiting requests of each client address, and its wakes without a verified credential."""

    def __init__(self, *, waiting: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`waiting` requests of one address may wait."""
        self._max_waiting = waiting
        self._clock = clock
        self._waiting: Counter[str] = Counter()
        self._wakes: OrderedDict[str, deque[float]] = OrderedDict()

    @contextlib.contextmanager
    def place(self, client: Client) -> Iterator[None]:
        """Have a request of this client wait while within. Raises Declined if too many do."""
        address = client.address
        if address and self._waiting[address] >= self._max_waiting:
            raise Declined(429, "too many requests of this client address wait")
        self._waiting[address] += 1
        try:
            yield
        finally:
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address]

    def wake(self, client: Client) -> None:
        """Count a wake that this client causes. Raises Declined if its address has caused too many."""
        if client.wakes is None or not client.address:
            return
        now = self._clock()
        times = self._wakes.setdefault(client.address, deque())
        self._wakes.move_to_end(client.address)
        while times and now - times[0] >= _WINDOW:
            times.popleft()
        if len(times) >= client.wakes:
            raise Declined(429, "this client address has woken too many control planes without a verified credential")
        times.append(now)
        while len(self._wakes) > _MAX_ADDRESSES:
            self._wakes.popitem(last=False)
