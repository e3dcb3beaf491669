"""A removal that keeps failing posts a Warning and is counted. A wait posts no Warning and is not counted."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from kplane.api import ControlPlane
from kplane.api.names import FINALIZER
from kplane.api.reasons import Reason
from kplane.controlplane_operator.controlplanes.deletion import Removal
from kplane.controlplane_operator.controlplanes.first_tries import FirstTries
from kplane.controlplane_operator.metrics import Metrics
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.stores import Stores

_ACME = ControlPlane.model_validate(
    {
        "metadata": {
            "name": "acme",
            "uid": "1",
            "finalizers": [FINALIZER],
            "deletionTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {},
    }
)


async def warnings_and_count(
    monkeypatch: pytest.MonkeyPatch, *failures: ConditionError
) -> tuple[list[dict[str, Any]], float | None]:
    """Try the removal five times within 25 s with these failures in turn. Returns the Warnings and the count."""
    clock, events, metrics = iter((0.0, 1.0, 5.0, 20.0, 25.0)), Mock(), Metrics()
    status = SimpleNamespace(write=AsyncMock())
    context: Any = SimpleNamespace(stores=Stores(), metrics=metrics, events=events, status=status)
    parts: Any = Mock()
    removal = Removal(
        context,
        namespaces=parts,
        provisioner=parts,
        claims=parts,
        mcms=parts,
        abandon=parts,
        served=parts,
    )
    monkeypatch.setattr(removal, "_first_tries", FirstTries(clock=lambda: next(clock)))
    monkeypatch.setattr(removal, "_await_consumers", Mock())
    monkeypatch.setattr(removal, "_take_down", AsyncMock(side_effect=itertools.cycle(failures)))
    for _ in range(5):
        await removal.remove(_ACME, chosen=None)
    counted = metrics.registry.get_sample_value(
        "kplane_reconcile_failures_total", {"controller": "controlplane", "reason": "DeletionFailed"}
    )
    return [call.kwargs for call in events.record.call_args_list], counted


async def test_failure_that_lasts_has_one_warning_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = ConditionError(Reason.DELETION_FAILED, "etcd does not answer")
    warning = {"reason": "DeletionFailed", "message": "etcd does not answer", "warning": True}
    assert await warnings_and_count(monkeypatch, failure) == ([warning], 2.0)


@pytest.mark.parametrize("reason", [Reason.ENDPOINT_UNREACHABLE, Reason.MANAGEMENT_CLUSTER_REFUSED])
async def test_failure_that_is_reported_at_once_has_one_warning(
    monkeypatch: pytest.MonkeyPatch, reason: Reason
) -> None:
    warning = {"reason": "DeletionFailed", "message": "no answer", "warning": True}
    # The text of an error may differ with each try, and each Event of another text is another object.
    failures = (ConditionError(reason, text) for text in ("no answer", "no answer of 10.0.0.2"))
    warnings, _ = await warnings_and_count(monkeypatch, *failures)
    assert warnings == [warning]


async def test_wait_has_no_warning_and_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = ConditionError(Reason.DELETING, "waiting until namespace kplane-cp-acme is gone")
    assert await warnings_and_count(monkeypatch, waiting) == ([], None)
