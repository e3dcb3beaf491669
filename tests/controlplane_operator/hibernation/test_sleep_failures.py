"""Failures to stop an API server, which are failures of the sleep."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from kplane.api import ControlPlane
from kplane.controlplane_operator.backends.virtual import VirtualProvisioner
from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.workloads import RuntimeFailure

_ACME = ControlPlane.model_validate(
    {"metadata": {"name": "acme", "uid": "1"}, "spec": {}, "status": {"endpoint": "https://acme"}}
)


@pytest.mark.parametrize("error", [RuntimeFailure("its node is out of reach"), KeyspaceError("etcd has no leader")])
async def test_hibernate_raises_sleep_failed_if_stop_fails(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    parts: Any = SimpleNamespace(client=Mock(), stores=Mock(), events=Mock(), metrics=Mock())
    runtime: Any = SimpleNamespace(stop=AsyncMock(side_effect=error))
    virtual = VirtualProvisioner(parts, runtime=runtime, shared_etcd=Mock(), restorer=Mock())
    monkeypatch.setattr(virtual, "_prepare", AsyncMock(return_value=(Mock(), False)))
    monkeypatch.setattr(virtual, "_identify", AsyncMock(return_value=None))
    with pytest.raises(ConditionError) as caught:
        await virtual.hibernate(_ACME)
    assert (caught.value.reason, caught.value.message) == ("SleepFailed", str(error))
