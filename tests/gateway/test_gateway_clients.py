"""Limits of a client address: waiting requests and unverified wake-ups."""

from __future__ import annotations

import contextlib

import pytest

from kplane.gateway.clients import NOBODY, WAKES, Client, ClientLimits
from kplane.gateway.errors import Declined


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("address", "counts_as"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", ""),
        ("unix", ""),
    ],
)
def test_client_at_counts_ipv6_address_by_64_network(address: str, counts_as: str) -> None:
    assert Client.at(address).address == counts_as


def test_client_limits_return_429_beyond_waiters_per_address() -> None:
    limits, client, other_client = ClientLimits(waiting=2), Client("192.0.2.7"), Client("192.0.2.8")
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(limits.place(client))
            stack.enter_context(limits.place(other_client))
            for _ in range(2):
                stack.enter_context(limits.place(NOBODY))
        with pytest.raises(Declined) as caught:
            stack.enter_context(limits.place(client))
        assert caught.value.code == 429
    with limits.place(client):
        pass


def test_client_limits_return_429_beyond_unverified_waiters() -> None:
    limits, client = ClientLimits(waiting=3, unverified=1), Client("192.0.2.7")
    with limits.place(client, verified=False), limits.place(NOBODY, verified=False):
        with (
            pytest.raises(Declined, match="without a verified credential") as caught,
            limits.place(client, verified=False),
        ):
            pass
        assert caught.value.code == 429
        with limits.place(client), limits.place(client), limits.place(NOBODY, verified=False):
            pass
    with limits.place(client, verified=False):
        pass


def test_client_limits_refuse_wakes_beyond_limit_for_a_minute() -> None:
    clock = Clock()
    limits, client = ClientLimits(waiting=1, clock=clock), Client("192.0.2.7", wakes=2)
    limits.wake(client)
    clock.now = 30.0
    limits.wake(client)
    with pytest.raises(Declined, match="client address"):
        limits.wake(client)
    limits.wake(Client("192.0.2.8", wakes=2))
    # Wakes with verified credentials have a limit of their own. Wakes of an unknown address have none.
    for _ in range(WAKES):
        limits.wake(Client("192.0.2.7"))
        limits.wake(NOBODY)
    limits.wake(NOBODY)
    with pytest.raises(Declined, match="client address"):
        limits.wake(Client("192.0.2.7"))
    clock.now = 60.0
    limits.wake(client)
    with pytest.raises(Declined):
        limits.wake(client)
