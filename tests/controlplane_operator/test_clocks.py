"""Timestamps of a clock that was ahead: they must not delay decisions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest

from kplane.api.clocks import is_future
from kplane.controlplane_operator.grants import Account
from kplane.controlplane_operator.registrations import identities
from kplane.controlplane_operator.registrations.identities import McmIdentities
from kplane.controlplane_operator.tenant.tokens import Token
from kplane.provider.testing import FakeCluster

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)


@pytest.mark.parametrize(("seconds", "expected"), [(-86400, False), (0, False), (60, False), (61, True)])
def test_is_future_tolerates_60_seconds_of_clock_skew(seconds: int, expected: bool) -> None:
    assert is_future(NOW + timedelta(seconds=seconds), now=NOW) is expected


async def test_token_of_mcm_is_requested_again_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [NOW + timedelta(days=2)]
    numbers: Iterator[int] = iter(range(9))

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return clock[0]

    async def request(*_: Any, lifetime: timedelta, **__: Any) -> Token:
        return Token(value=f"token-{next(numbers)}", expires_at=clock[0] + lifetime)

    monkeypatch.setattr(identities, "datetime", Clock)
    monkeypatch.setattr(identities, "request_token", request)
    cluster = FakeCluster("management")
    tokens, account = McmIdentities(cluster.client, cluster.cache), Account("kplane", "mcm")
    assert [await tokens.token(account) for _ in range(2)] == ["token-0"] * 2
    clock[0] = NOW
    assert tokens.renewed_in(account) == 0.0
    assert [await tokens.token(account) for _ in range(2)] == ["token-1"] * 2
    assert tokens.renewed_in(account) == timedelta(hours=24).total_seconds()
