"""The operator gives learners their vote; that a real etcd takes them is shown in tests/deploy/test_etcd_growth.py."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.shared_etcd import learners
from kplane.controlplane_operator.shared_etcd.access import SharedEtcd


async def test_an_etcd_that_is_away_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(learners, "_PERIOD_SECONDS", 0.0)
    asked, done = iter([KeyspaceError("away"), [], ["kplane-etcd-1"]]), asyncio.Event()

    async def promote() -> Any:
        answer = next(asked, None)
        if answer is None:
            done.set()
            await asyncio.Event().wait()
        if isinstance(answer, KeyspaceError):
            raise answer
        return answer

    etcd = SimpleNamespace(keyspace=SimpleNamespace(promote_learners=promote))
    caplog.set_level("INFO")
    running = asyncio.create_task(learners.LearnerPromoter(cast("SharedEtcd", etcd)).run())
    await asyncio.wait_for(done.wait(), timeout=60.0)
    running.cancel()
    assert [record.getMessage() for record in caplog.records] == ["kplane-etcd-1 has a vote in the shared etcd"]
