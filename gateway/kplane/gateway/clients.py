"""Clients of waiting requests, and limits for each client address."""

from __future__ import annotations

import contextlib
import ipaddress
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Self

from kplane.gateway.errors import Declined

__all__ = ["IPV6_NETWORK", "NOBODY", "WAKES", "Client", "ClientLimits"]

IPV6_NETWORK: Final = 64
"""Prefix length of the IPv6 network that counts as a client address: a client may own all addresses in it."""
WAKES: Final = 100
"""Maximum number of control planes that a client address may wake in a minute with verified credentials. Many clients
may share an address.
"""
_WINDOW: Final = 60.0
"""Seconds over which the wake-ups of a client address count."""
_UNVERIFIED: Final = 20
"""Maximum number of waiting requests of a client address without a verified credential, which may be made up."""
_MAX_ADDRESSES: Final = 10_000
"""Maximum number of client addresses with counted wake-ups. Beyond it, the least recent address is evicted."""


@dataclass(frozen=True, slots=True)
class Client:
    """Client of a request."""

    address: str
    """IPv4 address or IPv6 network of the client. It is empty for an unknown address, to which no limit applies."""
    wakes: int = WAKES
    """Maximum number of control planes that the client may wake in a minute. Wakes count by address and maximum."""

    @classmethod
    def at(cls, address: str, *, wakes: int = WAKES) -> Self:
        """Return the client at an IP address.

        An IPv6 address is replaced by its /64 network. An invalid address counts as unknown.
        """
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return cls("", wakes)
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        if isinstance(ip, ipaddress.IPv6Address):
            return cls(str(ipaddress.ip_network((ip, IPV6_NETWORK), strict=False)), wakes)
        return cls(str(ip), wakes)


NOBODY: Final = Client("")
"""Client with an unknown address."""


class ClientLimits:
    """Limits the waiting requests of each client address, and its wake-ups."""

    def __init__(
        self, *, waiting: int, unverified: int = _UNVERIFIED, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`waiting` is the maximum number of waiting requests of an address, and `unverified` that of requests without
        a verified credential among them.
        """
        self._max_waiting = waiting
        self._max_unverified = unverified
        self._clock = clock
        self._waiting: Counter[str] = Counter()
        self._unverified: Counter[str] = Counter()
        self._wakes: OrderedDict[Client, deque[float]] = OrderedDict()

    @contextlib.contextmanager
    def place(self, client: Client, *, verified: bool = True) -> Iterator[None]:
        """Count a waiting request of this client while the context is open.

        `verified` is False if the gateway cannot verify the credential of the request. Raises Declined if too many
        requests wait.
        """
        address = client.address
        if address and self._waiting[address] >= self._max_waiting:
            raise Declined(429, "too many requests of this client address wait")
        if address and not verified and self._unverified[address] >= self._max_unverified:
            raise Declined(429, "too many requests of this client address wait without a verified credential")
        counters = [self._waiting] if verified else [self._waiting, self._unverified]
        for counter in counters:
            counter[address] += 1
        try:
            yield
        finally:
            for counter in counters:
                counter[address] -= 1
                if not counter[address]:
                    del counter[address]

    def wake(self, client: Client) -> None:
        """Count a wake-up that this client causes.

        Raises Declined if its address has caused too many in the last minute.
        """
        if not client.address:
            return
        now = self._clock()
        times = self._wakes.setdefault(client, deque())
        self._wakes.move_to_end(client)
        while times and now - times[0] >= _WINDOW:
            times.popleft()
        if len(times) >= client.wakes:
            raise Declined(429, "this client address has woken too many control planes in the last minute")
        times.append(now)
        while len(self._wakes) > _MAX_ADDRESSES:
            self._wakes.popitem(last=False)
