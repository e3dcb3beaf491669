"""The operator promotes learners of etcd. tests/deploy/test_etcd_growth.py shows that a real etcd accepts this."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.shared_etcd import learners
from kplane.controlplane_operator.shared_etcd.access import SharedEtcd


async def test_learner_promotion_is_retried_if_etcd_is_unreachable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(learners, "_PERIOD_SECONDS", 0.0)
    answers, done = iter([KeyspaceError("away"), [], ["kplane-etcd-1"]]), asyncio.Event()

    async def promote() -> Any:
        answer = next(answers, None)
        if answer is None:
            done.set()
            await asyncio.Event().wait()
        if isinstance(answer, KeyspaceError):
            raise answer
        return answer

    etcd = SimpleNamespace(keyspace=SimpleNamespace(promote_learners=promote))
    caplog.set_level("INFO")
    task = asyncio.create_task(learners.LearnerPromoter(cast("SharedEtcd", etcd)).run())
    await asyncio.wait_for(done.wait(), timeout=60.0)
    task.cancel()
    assert [record.getMessage() for record in caplog.records] == ["kplane-etcd-1 has a vote in the shared etcd"]
