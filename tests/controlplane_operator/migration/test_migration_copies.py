"""Copies of migrations after failures: which copies restart, and which stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from kplane.controlplane_operator.controlplanes.migration import following
from kplane.controlplane_operator.controlplanes.migration.following import Copies, Copy
from kplane.data import Compacted, DataError, Unreachable


@pytest.fixture
async def copies() -> AsyncIterator[Copies]:
    copies = Copies()
    task = asyncio.create_task(copies.run())
    await asyncio.sleep(0)
    yield copies
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@contextlib.asynccontextmanager
async def _place() -> AsyncIterator[Any]:
    yield SimpleNamespace()


def _begin(copies: Copies, monkeypatch: pytest.MonkeyPatch, *, fails: list[DataError]) -> Copy:
    """Begin a copy whose attempts raise `fails`, in order. The attempt after them never ends."""

    class Failing:
        lag_seconds = 0.0

        def __init__(self, *_: object) -> None:
            pass

        async def copy(self) -> None:
            if fails:
                raise fails.pop(0)
            await asyncio.Event().wait()

        async def forget(self) -> None:
            pass

    async def at_once(_: float) -> None:
        pass

    monkeypatch.setattr(following, "Follower", Failing)
    monkeypatch.setattr(following, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": at_once}))
    return copies.begin("uid", source=_place, target=_place, changed=lambda: None)


async def test_copy_stops_with_the_reason_after_three_compactions(
    copies: Copies, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails: list[DataError] = [Compacted("compacted")] * 5
    copy = _begin(copies, monkeypatch, fails=fails)

    await eventually(lambda: "3 times, etcd compacted their revision" in (copy.problem or ""))
    assert len(fails) == 2
    await copies.end("uid")


async def test_copy_restarts_if_other_failures_separate_compactions(
    copies: Copies, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted, unreachable = Compacted("compacted"), Unreachable("gone")
    fails: list[DataError] = [compacted, compacted, unreachable, compacted, compacted, unreachable]
    copy = _begin(copies, monkeypatch, fails=fails)

    await eventually(lambda: not fails)
    assert copy.problem == "gone"
    await copies.end("uid")
